"""reply-lost: the server takes the lock for a client that never hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, naive, ours
from holdfast.cli.lab.naive import COMPARE_AND_DELETE, NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL = 30.0


class ReplyLost(NaiveLock):
    def attempt(self) -> bool:
        # After a timeout `acquire` asks again; this then refuses its own client.
        return self.set_if_absent() == "OK"

    def release(self) -> bool:
        return self.redis.call("EVAL", COMPARE_AND_DELETE, 1, self.key, self.owner) == 1


def play(scene: Scene) -> None:
    scene.lose_the_reply("ada")
    scene.ask("ada", patience=2.5, attempt=False)
    scene.until_the_reply_is_lost("ada")
    answer = scene.until("ada", "hold", "gave up", "failed")
    if answer == "failed":  # told that nothing is known, she asks once more
        scene.ask("ada", patience=2.5, attempt=False)
        answer = scene.until("ada", "hold", "gave up", "failed")
    scene.look_at_the_key()
    if answer == "hold":
        scene.rest(0.2)
        scene.release("ada")
    scene.ask("bob", patience=0.5)
    if scene.until("bob", "hold", "gave up") == "hold":
        scene.rest(0.2)
        scene.release("bob")


def judge(history: History) -> Finding:
    lost, key = history.first("network", "swallowed"), history.first("server", "key")
    if not (lost and key):
        return Finding("unclear", f"{NOT_SHOWN}no reply was lost")
    if hold := history.first("ada", "hold"):
        if not history.held("bob"):
            return Finding("broken", "ada released the lock, and bob could not have it")
        return Finding(
            "held",
            f"{hold.at - lost.at:.2f} s after the reply was lost ada had the lock; when she had "
            "released it, bob had it at once",
        )
    if history.first("bob", "gave up") and str(key.figures["value"]).startswith("ada-"):
        return Finding(
            "broken",
            "deadlock: ada was refused by her own lock until she gave up, bob too; nobody has it, "
            f"and it is taken for {key.figures['pttl'] / 1000:.0f} s more",
        )
    return Finding("unclear", f"{NOT_SHOWN}ada did not get the lock, and it is not hers")


LEVEL = Level(
    name="reply-lost",
    title="The command was done, the reply was lost",
    fault="The server takes the lock for ada; the reply never reaches her. She asks again.",
    why="A timeout does not say whether the command was done, and a naive lock asks again as a "
    "stranger. holdfast asks again as the same owner, whom the server knows, or takes the attempt "
    "back before it gives up: its own lock never stands in its way.",
    ttl=TTL,
    cast=("ada", "bob"),
    forms=(
        naive("SET stock ada NX PX 30000   (no answer)   SET stock ada NX PX 30000", ReplyLost),
        ours(TTL),
    ),
    play=play,
    judge=judge,
    proxied=("ada",),
)
