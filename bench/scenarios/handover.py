"""One lock, W waiters that each ask again at once: how fast, and how fairly, it changes hands.

Threads are compared with a fair lock made of bare locks (`floors.FifoLock`), and tasks with
`asyncio.Lock`, which is fair. `threading.Lock` runs beside them as what people use: it is not fair.
The ratio is of the time for one change of owner. Overtakes are counted in runs of their own, in
which the backend notes when each claim stood in line.

A holder yields once while it holds. Without that the threads of one process would hardly meet: the
interpreter lets each run alone for five milliseconds, in which it takes and releases a free lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import holdfast
from bench import counted
from bench.floors import FifoLock
from bench.measure import (
    SAME,
    SPLIT,
    Comparison,
    Figures,
    Goal,
    Plan,
    Result,
    compare,
    cores,
    in_child,
    jain,
    latencies,
    overtakes,
    pin,
)
from holdfast import aio

__all__ = ["run_tasks", "run_threads"]

WAITERS = (2, 10, 50, 200)
KEY = "us per change"
FAIR = (Goal("overtakes", 0),)


class Mutex(Protocol):
    """What every lock can do; holdfast's too, whose results nobody needs here."""

    def acquire(self) -> object: ...

    def release(self) -> object: ...


def run_threads(plan: Plan) -> Iterator[Result]:
    for waiters in (2, 10) if plan.quick else WAITERS:
        for placement in (SAME, SPLIT):
            for subject in ("holdfast memory://", "threading.Lock"):
                measured = in_child(_measure_threads, plan, waiters, placement, subject)
                yield Result(
                    "handover-threads",
                    f"{waiters} waiters",
                    placement,
                    subject,
                    "FIFO lock of bare locks",
                    KEY,
                    measured,
                    FAIR if subject.startswith("holdfast") else (),
                )


def run_tasks(plan: Plan) -> Iterator[Result]:
    for waiters in (2, 10) if plan.quick else WAITERS:
        yield Result(
            "handover-asyncio",
            f"{waiters} waiters",
            SAME,
            "holdfast memory://",
            "asyncio.Lock",
            KEY,
            in_child(_measure_tasks, plan, waiters),
            FAIR,
        )


class Turns:
    """What happened while it was held: written by the holder alone, so it needs no lock."""

    def __init__(self) -> None:
        self.gaps: list[int] = []
        self.changes = 0
        self.released = 0
        self.owner = -1
        self.counts: dict[int, int] = {}

    def taken(self, owner: int) -> None:
        if owner != self.owner:
            if self.released:
                self.gaps.append(time.perf_counter_ns() - self.released)
            self.changes += 1
            self.owner = owner
        self.counts[owner] = self.counts.get(owner, 0) + 1

    def leaving(self) -> None:
        self.released = time.perf_counter_ns()

    def figures(self, waiters: int, seconds: float) -> Figures:
        changes = max(1, self.changes)
        return {
            KEY: seconds / changes * 1e6,
            "changes per s": self.changes / seconds,
            **latencies(self.gaps),
            "jain": jain([self.counts.get(number, 0) for number in range(waiters)]),
        }


# -- threads ---------------------------------------------------------------------------------------


def _measure_threads(plan: Plan, waiters: int, placement: str, subject: str) -> Comparison:
    pin(*(cores()[:1] if placement == SAME else cores()))
    seconds = plan.amount(150, 30) / 1000
    with holdfast.connect("memory://handover") as locks:
        chosen: Callable[[], Mutex] = (
            (lambda: locks.lock("one")) if subject.startswith("holdfast") else threading.Lock
        )
        measured = compare(
            plan.pairs,
            KEY,
            lambda: contend(chosen(), waiters, seconds),
            lambda: contend(FifoLock(), waiters, seconds),
        )
    if subject.startswith("holdfast"):
        measured.figures["overtakes"] = overtaken(waiters, seconds)
    return measured


def contend(lock: Mutex, waiters: int, seconds: float) -> Figures:
    turns = Turns()
    stop = False

    def work(number: int) -> None:
        while not stop:
            lock.acquire()
            turns.taken(number)
            time.sleep(0)  # give the others a chance to stand in line
            turns.leaving()
            lock.release()

    with _crowd(work, waiters) as began:
        time.sleep(seconds)
        stop = True
        return turns.figures(waiters, time.perf_counter() - began)


@contextlib.contextmanager
def _crowd(work: Callable[[int], None], size: int) -> Iterator[float]:
    """Threads that begin together; gives when they did, and joins them at the end."""
    gate = threading.Barrier(size + 1)

    def body(number: int) -> None:
        gate.wait()
        work(number)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    gate.wait()
    try:
        yield time.perf_counter()
    finally:
        for thread in threads:
            thread.join()


def overtaken(waiters: int, seconds: float) -> int:
    locks, counts = counted.connect("memory://overtakes")
    turns: list[tuple[int, int, str]] = []
    stop = False

    def work(number: int) -> None:
        lock = locks.lock("one")
        while not stop:
            began = time.perf_counter_ns()
            lease = lock.acquire()
            assert lease is not None
            turns.append((began, time.perf_counter_ns(), lease._hold.claim.owner))
            time.sleep(0)
            lease.release()

    with locks, _crowd(work, waiters):
        time.sleep(seconds)
        stop = True
    return overtakes([(began, counts.queued.get(who), got) for began, got, who in turns])


# -- tasks -----------------------------------------------------------------------------------------


def _measure_tasks(plan: Plan, waiters: int) -> Comparison:
    pin(cores()[0])
    seconds = plan.amount(150, 30) / 1000
    measured = compare(
        plan.pairs,
        KEY,
        lambda: asyncio.run(_contend_holdfast(waiters, seconds)),
        lambda: asyncio.run(_contend_asyncio(waiters, seconds)),
    )
    measured.figures["overtakes"] = asyncio.run(_overtaken_tasks(waiters, seconds))
    return measured


async def _contend_holdfast(waiters: int, seconds: float) -> Figures:
    turns = Turns()
    async with aio.connect("memory://handover") as locks:
        lock = locks.lock("one")
        began = time.perf_counter()

        async def work(number: int) -> None:
            while time.perf_counter() - began < seconds:
                lease = await lock.acquire()
                assert lease is not None
                turns.taken(number)
                await asyncio.sleep(0)  # else nobody else would ever get to ask
                turns.leaving()
                await lease.release()

        await asyncio.gather(*map(work, range(waiters)))
        return turns.figures(waiters, time.perf_counter() - began)


async def _contend_asyncio(waiters: int, seconds: float) -> Figures:
    turns = Turns()
    lock = asyncio.Lock()
    began = time.perf_counter()

    async def work(number: int) -> None:
        while time.perf_counter() - began < seconds:
            await lock.acquire()
            turns.taken(number)
            await asyncio.sleep(0)
            turns.leaving()
            lock.release()

    await asyncio.gather(*map(work, range(waiters)))
    return turns.figures(waiters, time.perf_counter() - began)


async def _overtaken_tasks(waiters: int, seconds: float) -> int:
    locks, counts = counted.aio_connect("memory://overtakes")
    turns: list[tuple[int, int, str]] = []
    async with locks:
        lock = locks.lock("one")
        over = time.perf_counter() + seconds

        async def work() -> None:
            while time.perf_counter() < over:
                began = time.perf_counter_ns()
                lease = await lock.acquire()
                assert lease is not None
                turns.append((began, time.perf_counter_ns(), lease._hold.claim.owner))
                await asyncio.sleep(0)
                await lease.release()

        await asyncio.gather(*(work() for _ in range(waiters)))
    return overtakes([(began, counts.queued.get(who), got) for began, got, who in turns])
