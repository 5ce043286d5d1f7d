"""master-lost: the master dies with the lock before its replica has heard of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, naive, ours
from holdfast.cli.lab.naive import COMPARE_AND_DELETE, NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL = 20.0


class OneMaster(NaiveLock):
    def attempt(self) -> bool:
        return self.set_if_absent() == "OK"  # the master's word alone

    def release(self) -> bool:
        return self.redis.call("EVAL", COMPARE_AND_DELETE, 1, self.key, self.owner) == 1


def play(scene: Scene) -> None:
    scene.cut_replication()
    scene.ask("ada", patience=1.0, attempt=False)
    answer = scene.until("ada", "hold", "gave up", "failed")
    scene.rest(0.2)
    scene.lose_the_master()
    scene.ask("bob", patience=5.0, attempt=False)
    scene.until("bob", "hold")
    scene.rest(0.2)
    scene.write("bob")
    if answer == "hold":
        scene.write("ada")  # late, by a holder that another holder does not know of
    scene.release("bob")


def judge(history: History) -> Finding:
    if not (history.first("master", "killed") and history.held("bob")):
        return Finding("unclear", f"{NOT_SHOWN}nobody had the lock after the failover")
    if not history.held("ada"):
        failed = history.first("ada", "failed", "gave up")
        if failed is None or history.overlaps():
            return Finding("unclear", f"{NOT_SHOWN}ada neither had the lock nor was refused")
        return Finding(
            "held", "ada's acquire failed, because no replica had it; bob alone held the lock"
        )
    if not history.overlaps():
        return Finding("unclear", f"{NOT_SHOWN}ada held the lock, and not at the same time as bob")
    late = history.first("ada", "write")
    if late is None:
        return Finding("unclear", f"{NOT_SHOWN}ada did not write")
    if late.figures["accepted"]:
        return Finding(
            "broken", "ada and bob held the lock at the same time, and both writes were accepted"
        )
    return Finding(
        "held",
        "ada and bob both believed to hold the lock, as no lock on one master can prevent; "
        f"the resource took bob's write and refused ada's: {late.figures['refusal']}",
    )


LEVEL = Level(
    name="master-lost",
    title="The master is lost before its replica has the lock",
    fault="ada takes the lock while replication is held up. The master is killed, its replica "
    "promoted. bob asks the new master. Then both write, ada last.",
    why="Redis answers before its replicas have the write, so a failover can forget a lock "
    "that was granted. With ?replicas=N holdfast gives the lock back unless so many replicas have "
    "it, and the fencing token lets the resource refuse whoever was forgotten.",
    ttl=TTL,
    cast=("ada", "bob"),
    forms=(
        naive("SET stock ada NX PX 20000", OneMaster),
        ours(
            TTL,
            'holdfast.connect("redis://...?replicas=1&replica_timeout=0.2").lock("stock")',
            "holdfast, ?replicas=1",
            "replicas=1&replica_timeout=0.2",
        ),
        ours(TTL, 'locks.lock("stock"), and the resource checks lease.fence', "holdfast, fencing"),
    ),
    play=play,
    judge=judge,
    cold=("bob",),
    replicated=True,
)
