"""check-then-delete: the owner is checked, and then, a little later, the lock is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, judge_exclusion, naive, ours
from holdfast.cli.lab.levels.no_owner_check import third_comes
from holdfast.cli.lab.naive import NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL = 0.8


class CheckThenDelete(NaiveLock):
    def attempt(self) -> bool:
        return self.set_if_absent() == "OK"

    def release(self) -> None:
        if self.redis.call("GET", self.key) == self.owner:
            # True when it was read. Until the next command arrives, anything may happen.
            self.redis.call("DEL", self.key)


def play(scene: Scene) -> None:
    scene.ask("ada")
    scene.until("ada", "hold")
    scene.rest(0.2)
    with scene.delay_changes("ada"):
        scene.tell("ada", do="release")
        scene.until_a_change_is_delayed("ada")
        scene.ask("bob")
        scene.until("bob", "hold")
    scene.until_the_change_arrived("ada")
    third_comes(scene)


def judge(history: History) -> Finding:
    arrived, hold = history.first("network", "arrived"), history.first("bob", "hold")
    if not (arrived and hold and arrived.at > hold.at):
        return Finding("unclear", f"{NOT_SHOWN}ada's command did not arrive after bob had the lock")
    return judge_exclusion(history, "bob", "cleo", "ada", "bob", "cleo")


LEVEL = Level(
    name="check-then-delete",
    title="Look whose lock it is, then delete it",
    fault="ada releases; her last command is on its way for longer than her lease, and arrives "
    "when bob has the lock. cleo asks.",
    why="What was true when it was read need not be true when the next command arrives. In "
    "holdfast's release the comparison and the deletion are one script on the server.",
    ttl=TTL,
    cast=("ada", "bob", "cleo"),
    forms=(naive("SET NX PX   ...   if GET stock = ada: DEL stock", CheckThenDelete), ours(TTL)),
    play=play,
    judge=judge,
    proxied=("ada",),
)
