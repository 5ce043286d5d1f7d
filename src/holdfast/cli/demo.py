"""`holdfast demo`: three short scenes on a real memory:// store, measured and drawn.

Contract: nothing shown is written in advance. The scenes record what happened, the text is made
from the records, and a record that contradicts what holdfast promises is said in red and makes the
exit status 1. Partner: `screen.py`, which draws.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TextIO

import holdfast
from holdfast.cli.screen import Row, Screen, Span

__all__ = ["play"]

STORE = "memory://holdfast-demo"
PATIENCE = 10.0
"""How long one actor waits for another before the scene is called broken."""
WORKERS = {"ada": "blue", "bob": "orange", "cleo": "green", "dan": "pink", "eve": "teal"}


@dataclass
class Stage:
    """What the scenes share. `pace` shortens all of it: tests play it fast."""

    screen: Screen
    pace: float
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0
    shown: list[str] = field(default_factory=list[str])
    broken: list[str] = field(default_factory=list[str])

    def scene(self, title: str, text: str) -> None:
        self.screen.title(title)
        self.screen.paragraph(text)
        self.screen.say()
        self.began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self.began

    def event(self, who: str, text: str) -> None:
        self.screen.event(self.now(), who, WORKERS.get(who, "grey"), text)

    def verdict(self, kept: bool, promise: str) -> None:
        """What the scene showed, or that it did not."""
        (self.shown if kept else self.broken).append(promise)


def play(out: TextIO, pace: float = 1.0) -> int:
    """The demonstration; its exit status."""
    stage = Stage(Screen(out), pace)
    screen = stage.screen
    screen.say(screen.paint("bold", f"holdfast {holdfast.__version__}"))
    screen.paragraph(
        "Locks that are handed over in order, and that tell you when they are no longer yours. "
        "Everything below happens now, in this process, and is measured."
    )
    try:
        with holdfast.connect(STORE, label="demo") as locks:
            fairness(stage, locks)
            fencing(stage, locks)
            asyncio.run(cancellation(stage, locks))
            left = locks.inspect()
        stage.verdict(not left, f"nothing was left behind: {len(left)} locks held or waited for")
    finally:
        stage.stop.set()
    return farewell(stage)


def farewell(stage: Stage) -> int:
    screen = stage.screen
    screen.title("What this run showed")
    for promise in stage.shown:
        screen.say(f"  {screen.paint('green', '+')} {promise}")
    for promise in stage.broken:
        screen.say(f"  {screen.paint('red', '! NOT KEPT:')} {promise}")
    screen.say()
    screen.paragraph(
        "memory:// works between the threads and tasks of one process; it is the only store in "
        "this version. Next: README.md, then docs/tutorial/first-lock.md and "
        "docs/how-to/protect-the-resource-with-fencing.md."
    )
    return 1 if stage.broken else 0


Line = list[tuple[str, int]]
"""A waiting line as the store showed it: worker and which of its turns, first in line first."""

# -- 1: in order --------------------------------------------------------------------------------


def fairness(stage: Stage, locks: holdfast.Locks) -> None:
    shortest, longest = 0.04 * stage.pace, 0.16 * stage.pace
    stage.scene(
        "1. Five workers, one lock",
        f"Each asks for the lock, works under it for {shortest * 1e3:.0f} to {longest * 1e3:.0f} "
        "ms, and asks again. The lock is fair: who asked first has it first.",
    )
    rows = [Row(name, colour) for name, colour in WORKERS.items()]
    length = 4.0 * stage.pace
    lines: list[Line] = []

    def work(row: Row) -> None:
        for turn in itertools.count():
            if stage.now() > 0.8 * length or stage.stop.is_set():
                return
            row.spans.append(wait := Span("wait", stage.now()))
            whose = {"worker": row.name, "turn": str(turn)}
            with locks.lock("printer", ttl=10, metadata=whose):
                wait.end = stage.now()
                row.spans.append(hold := Span("hold", wait.end))
                time.sleep(random.uniform(shortest, longest))
                hold.end = stage.now()
            time.sleep(random.uniform(0.0, longest))

    def draw() -> None:
        now = stage.now()
        stage.screen.redraw(stage.screen.timeline(rows, now, max(now, length)))

    with ThreadPoolExecutor(len(rows)) as threads:
        working = [threads.submit(work, row) for row in rows]
        try:
            while not all(future.done() for future in working):
                waiters = [w.info for info in locks.inspect("printer") for w in info.waiters]
                lines.append([(info["worker"], int(info["turn"])) for info in waiters])
                if stage.screen.live:
                    draw()
                time.sleep(0.05)
        except BaseException:
            stage.stop.set()
            raise
        for future in working:
            future.result()
    draw()
    stage.screen.say(stage.screen.legend("hold", "wait"))
    judge(stage, rows, [line for line in lines if len(line) > 1])


def judge(stage: Stage, rows: list[Row], lines: list[Line]) -> None:
    """Mutual exclusion, order and hand-over time, from the records of the first scene."""
    holds = sorted(
        (span.start, span.end or span.start, row.name)
        for row in rows
        for span in row.spans
        if span.kind == "hold"
    )
    changes = list(itertools.pairwise(holds))
    together = sum(later[0] < earlier[1] for earlier, later in changes)
    stage.verdict(not together, f"{len(holds)} holds, two at once: {together} times")
    overtakes = sum(overtaken(line, rows) for line in lines)
    stage.verdict(
        not overtakes,
        f"the waiting line was looked at {len(lines)} times; overtakes after it: {overtakes}",
    )
    # Only hand-overs to somebody who was waiting already: the others measure the worker's idling.
    gaps = [b[0] - a[1] for a, b in changes if waited(rows, b[2], a[1])]
    if gaps:
        typical = statistics.median(gaps) * 1e3
        stage.verdict(True, f"from a release to the next one's start: {typical:.2f} ms (median)")


def overtaken(line: Line, rows: list[Row]) -> bool:
    """Whether those who stood in this line were granted in another order than they stood."""
    holds = {row.name: [s.start for s in row.spans if s.kind == "hold"] for row in rows}
    granted = [holds[name][turn] for name, turn in line]
    return granted != sorted(granted)


def waited(rows: list[Row], name: str, moment: float) -> bool:
    return any(row.name == name and row.at(moment - 1e-6) == "wait" for row in rows)


# -- 2: a holder that was paused ------------------------------------------------------------------


class Refused(Exception):
    """The resource has seen a newer fencing token."""


class Account:
    """A resource. With `checks` it remembers the highest token and refuses a smaller one."""

    def __init__(self, balance: int, checks: bool) -> None:
        self.balance = balance
        self._highest = 0 if checks else None
        self._mutex = threading.Lock()

    def write(self, balance: int, fence: int) -> None:
        with self._mutex:
            if self._highest is not None:
                if fence < self._highest:
                    raise Refused(f"token {fence} is older than {self._highest}")
                self._highest = fence
            self.balance = balance


def fencing(stage: Stage, locks: holdfast.Locks) -> None:
    ttl, pause, start, gift = 1.0 * stage.pace, 2.0 * stage.pace, 100, 50
    stage.scene(
        "2. A holder that is paused for longer than its lease",
        f"ada reads a balance of {start} under the lock and falls asleep before writing "
        f"{start + 20}, as a swapped-out process would. Her lease is fixed (renew=False). bob "
        f"waits, then pays in {gift}. Two accounts get the same writes; one checks the tokens.",
    )
    careless, careful = Account(start, checks=False), Account(start, checks=True)
    ada, bob = Row("ada", WORKERS["ada"]), Row("bob", WORKERS["bob"])
    has_it, paid, heard = threading.Event(), threading.Event(), threading.Event()
    refusals, losses = list[str](), list[float]()

    def told(loss: holdfast.LeaseLost) -> None:
        losses.append(stage.now())
        stage.event("ada", f"callback on_lost: {loss.reason}")
        heard.set()

    def write(who: str, amount: int, fence: int) -> None:
        careless.write(amount, fence)
        try:
            careful.write(amount, fence)
            stage.event(who, f"writes {amount}: both accounts accept it")
        except Refused as refusal:
            refusals.append(who)
            stage.event(who, f"writes {amount}: the careful account refuses, {refusal}")

    def sleeper() -> float:
        """How long her lease lasted until she was told; 0 if she never was."""
        begin = stage.now()
        try:
            with locks.lock("account:7", ttl=ttl, renew=False, on_lost=told) as lease:
                ada.spans.append(hold := Span("hold", begin))
                read = careful.balance
                stage.event("ada", f"has the lock, token {lease.fence}; reads {read}, sleeps")
                has_it.set()
                stage.stop.wait(pause)
                paid.wait(PATIENCE)  # however slow this machine is: she oversleeps bob's payment
                hold.end = losses[0] if losses else stage.now()
                ada.spans.append(stale := Span("stale", hold.end))
                stage.event("ada", f"wakes up: lease.held is {lease.held}; writes all the same")
                write("ada", read + 20, lease.fence)
                stale.end = stage.now()
        except holdfast.LeaseLost:
            stage.event("ada", "leaving the `with` raises LeaseLost")
        return losses[0] - begin if heard.wait(PATIENCE) else 0.0

    def payer() -> None:
        has_it.wait(PATIENCE)
        bob.spans.append(wait := Span("wait", stage.now()))
        with locks.lock("account:7") as lease:
            wait.end = stage.now()
            bob.spans.append(hold := Span("hold", wait.end))
            stage.event("bob", f"has the lock, token {lease.fence}")
            stage.stop.wait(0.4 * stage.pace)
            write("bob", careful.balance + gift, lease.fence)
            paid.set()
            hold.end = stage.now()

    lasted = together(stage, sleeper, payer)
    screen = stage.screen
    screen.say()
    screen.redraw(screen.timeline([ada, bob], stage.now(), stage.now()))
    screen.say(screen.legend("hold", "wait", "stale"))
    screen.say(f"  balance without tokens: {careless.balance}   with tokens: {careful.balance}")
    stage.verdict(
        lasted > 0, f"a lease of {ttl:g} s ended by itself; its holder was told at {lasted:.3f} s"
    )
    stage.verdict(
        refusals == ["ada"] and careful.balance == start + gift,
        f"a stale write was refused by its token: {careful.balance}, not {careless.balance}",
    )


def together(stage: Stage, first: Callable[[], float], second: Callable[[], None]) -> float:
    """Run both in threads until both have ended; an interrupt ends their pauses."""
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.submit(first), threads.submit(second)
        try:
            two.result()
            return one.result()
        except BaseException:
            stage.stop.set()
            raise


# -- 3: an async body ------------------------------------------------------------------------------


async def cancellation(stage: Stage, operator: holdfast.Locks) -> None:
    ttl = 0.9 * stage.pace
    stage.scene(
        "3. An async body is cancelled when its lease is lost",
        f"A task writes a report under a lock that is renewed every {ttl / 3:g} s. An operator "
        "takes the lock away (locks.evict). The task learns of it at its next renewal.",
    )
    pages, evicted, cancelled = 0, 0.0, 0.0

    def evict() -> None:
        nonlocal evicted
        evicted = stage.now()
        stage.event("", f"the operator evicts {operator.evict('report')} holder")

    async with holdfast.aio.connect(STORE, label="demo") as locks:
        asyncio.get_running_loop().call_later(0.75 * stage.pace, evict)
        try:
            async with locks.lock("report", ttl=ttl) as lease:
                stage.event("eve", f"has the lock, token {lease.fence}; starts writing")
                try:
                    while True:
                        await asyncio.sleep(0.1 * stage.pace)
                        pages += 1
                except asyncio.CancelledError:
                    cancelled = stage.now()
                    stage.event("eve", f"is cancelled after page {pages}")
                    raise
        except holdfast.LeaseLost as loss:
            stage.event("eve", f"the `async with` raises LeaseLost: {loss.reason}")
    stage.verdict(
        0 < evicted < cancelled,
        f"an async body was cancelled {cancelled - evicted:.3f} s after the lock was taken away",
    )
