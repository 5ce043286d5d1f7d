"""no-expiry: a lock that only its holder can end, and a holder that dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, naive, ours
from holdfast.cli.lab.naive import NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL, PATIENCE = 1.0, 3.0


class NoExpiry(NaiveLock):
    def attempt(self) -> bool:
        return self.redis.call("SETNX", self.key, self.owner) == 1

    def release(self) -> None:
        self.redis.call("DEL", self.key)


def play(scene: Scene) -> None:
    scene.ask("ada")
    scene.until("ada", "hold")
    scene.rest(0.2)
    scene.kill("ada")
    scene.ask("bob", patience=PATIENCE)
    if scene.until("bob", "hold", "gave up") == "hold":
        scene.rest(0.2)
        scene.release("bob")
    scene.look_at_the_key()


def judge(history: History) -> Finding:
    """Broken: bob waited in vain for a dead process's lock, and the server will never end it."""
    killed, asked = history.first("ada", "killed"), history.first("bob", "wait")
    if not (history.held("ada") and killed and asked):
        return Finding("unclear", f"{NOT_SHOWN}ada was not killed while she held the lock")
    if hold := history.first("bob", "hold"):
        waited = hold.at - killed.at
        text = f"{waited:.2f} s after ada was killed bob had the lock (lease: {TTL:g} s)"
        return Finding("held" if waited <= PATIENCE else "broken", text)
    gave_up, key = history.first("bob", "gave up"), history.first("server", "key")
    if gave_up and key and key.figures["pttl"] == -1:
        waited = gave_up.at - asked.at
        return Finding(
            "broken",
            f"deadlock: bob waited {waited:.1f} s for a lock whose holder is dead, and its key has "
            "no expiry: it will be there for ever",
        )
    return Finding("unclear", f"{NOT_SHOWN}bob did not get the lock, and the key may still end")


LEVEL = Level(
    name="no-expiry",
    title="No expiry, and the holder crashes",
    fault="ada takes the lock and is killed (SIGKILL) while she works. bob asks for it.",
    why="A lock that only its holder can end lasts for ever when the holder cannot. A lease ends "
    "by itself, so a crash costs the others its ttl at most.",
    ttl=TTL,
    cast=("ada", "bob"),
    forms=(naive("SETNX stock ada   ...   DEL stock", NoExpiry), ours(TTL)),
    play=play,
    judge=judge,
)
