"""short-lease: the work takes longer than the lease, and nobody renews it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, judge_exclusion, naive, ours
from holdfast.cli.lab.naive import COMPARE_AND_DELETE, NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL = 1.0


class ShortLease(NaiveLock):
    """Set with an end in one command, released by its owner in one script. Still not enough."""

    def attempt(self) -> bool:
        return self.set_if_absent() == "OK"

    def release(self) -> bool:
        return self.redis.call("EVAL", COMPARE_AND_DELETE, 1, self.key, self.owner) == 1


def play(scene: Scene) -> None:
    scene.ask("ada")
    scene.until("ada", "hold")
    scene.rest(0.2)
    scene.ask("bob")
    early = scene.until("bob", "hold", "refused")
    if early == "refused":
        early = scene.until("bob", "hold", seconds=3 * TTL)  # ada's work takes three leases
    scene.look("ada")
    scene.rest(0.2)
    scene.release("ada")
    if early != "hold":
        scene.until("bob", "hold")
        scene.rest(0.2)
    scene.release("bob")


def judge(history: History) -> Finding:
    finding = judge_exclusion(history, "ada", "bob", "ada", "bob")
    if finding.outcome == "held" and history.first("ada", "lost"):
        return Finding("unclear", f"{NOT_SHOWN}ada's lease could not be renewed, and she was told")
    hold, free = history.first("ada", "hold"), history.first("ada", "free")
    if finding.outcome == "held" and hold and free:
        worked = free.at - hold.at
        if worked < 2 * TTL:
            return Finding("unclear", f"{NOT_SHOWN}ada did not work for longer than her lease")
        text = f"ada worked {worked:.1f} s under a lease of {TTL:g} s; bob had the lock afterwards"
        return Finding("held", text)
    return finding


LEVEL = Level(
    name="short-lease",
    title="The lease is shorter than the work",
    fault="ada works for three times her lease. bob waits for the lock.",
    why="Nobody knows beforehand how long work takes, and the server ends the lease on time. "
    "holdfast renews it every third of its ttl for as long as the holder lives, and tells the "
    "holder (lease.lost) when that fails.",
    ttl=TTL,
    cast=("ada", "bob"),
    forms=(naive("SET NX PX 1000   ...   if GET = ada: DEL, in one script", ShortLease), ours(TTL)),
    play=play,
    judge=judge,
)
