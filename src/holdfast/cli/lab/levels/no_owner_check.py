"""no-owner-check: whoever releases deletes the lock, whosever it is by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, judge_exclusion, naive, ours
from holdfast.cli.lab.naive import NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL = 0.8


class NoOwnerCheck(NaiveLock):
    def attempt(self) -> bool:
        return self.set_if_absent() == "OK"

    def release(self) -> None:
        self.redis.call("DEL", self.key)


def play(scene: Scene) -> None:
    scene.ask("ada")
    scene.until("ada", "hold")
    scene.rest(0.2)
    scene.stop("ada")
    scene.ask("bob")
    scene.until("bob", "hold")
    scene.wake("ada")
    scene.look("ada")
    scene.release("ada")
    third_comes(scene)


def third_comes(scene: Scene) -> None:
    """bob holds. Can cleo have it, too?"""
    scene.ask("cleo")
    answer = scene.until("cleo", "hold", "refused")
    scene.rest(0.3)
    scene.release("bob")
    if answer == "refused":
        scene.until("cleo", "hold")
        scene.rest(0.2)
    scene.release("cleo")


def judge(history: History) -> Finding:
    released, holds = history.first("ada", "released", "failed"), history.first("bob", "hold")
    if not (released and holds and released.at > holds.at):
        return Finding("unclear", f"{NOT_SHOWN}ada did not release after bob had the lock")
    return judge_exclusion(history, "bob", "cleo", "ada", "bob", "cleo")


LEVEL = Level(
    name="no-owner-check",
    title="Release without looking whose lock it is",
    fault="ada is stopped (SIGSTOP) for longer than her lease, and bob has the lock. Then ada goes "
    "on, and releases. cleo asks.",
    why="A holder that was away releases a lock that is somebody else's by now, and opens it to a "
    "third. holdfast's release names its owner: what is no longer ours is not touched, and "
    "release() says False.",
    ttl=TTL,
    cast=("ada", "bob", "cleo"),
    forms=(naive("SET stock ada NX PX 800   ...   DEL stock", NoOwnerCheck), ours(TTL)),
    play=play,
    judge=judge,
)
