"""two-commands: the expiry is set by a second command, and the client dies between the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, naive, ours
from holdfast.cli.lab.levels import no_expiry
from holdfast.cli.lab.naive import NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene


class TwoCommands(NaiveLock):
    def attempt(self) -> bool:
        if self.redis.call("SETNX", self.key, self.owner) == 0:
            return False
        # Whoever dies here leaves a lock without an end.
        self.redis.call("PEXPIRE", self.key, self.milliseconds)
        return True

    def release(self) -> None:
        self.redis.call("DEL", self.key)


def play(scene: Scene) -> None:
    scene.lose_the_reply("ada")
    scene.ask("ada")
    scene.until_the_reply_is_lost("ada")
    scene.look_at_the_key()
    scene.kill("ada")
    scene.ask("bob", patience=no_expiry.PATIENCE)
    if scene.until("bob", "hold", "gave up") == "hold":
        scene.rest(0.2)
        scene.release("bob")
    scene.look_at_the_key()


def judge(history: History) -> Finding:
    """As no-expiry; only that ada never heard that she had it."""
    keys, killed = history.find("server", "key"), history.first("ada", "killed")
    if not (keys and keys[0].figures["there"] and killed) or history.held("ada"):
        return Finding(
            "unclear", f"{NOT_SHOWN}the server had not taken ada's command when she died"
        )
    if hold := history.first("bob", "hold"):
        waited = hold.at - killed.at
        text = f"{waited:.2f} s after ada was killed bob had the lock (lease: {no_expiry.TTL:g} s)"
        return Finding("held" if waited <= no_expiry.PATIENCE else "broken", text)
    if history.first("bob", "gave up") and keys[-1].figures["pttl"] == -1:
        return Finding(
            "broken",
            "deadlock: bob waited in vain for a lock whose owner died before it gave it an end: "
            "its key has no expiry",
        )
    return Finding("unclear", f"{NOT_SHOWN}bob did not get the lock, and the key may still end")


LEVEL = Level(
    name="two-commands",
    title="The expiry comes in a second command, and the client crashes between",
    fault="ada is killed when the server has done the first command of her acquire, before she "
    "can send another. bob asks for the lock.",
    why="What is sent in two commands can end after the first one. holdfast's attempt is one "
    "script: the lock and its end come into being together, or not at all.",
    ttl=no_expiry.TTL,
    cast=("ada", "bob"),
    forms=(
        naive("SETNX stock ada   PEXPIRE stock 1000   ...   DEL stock", TwoCommands),
        ours(no_expiry.TTL),
    ),
    play=play,
    judge=judge,
    proxied=("ada",),
)
