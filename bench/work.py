"""What a worker does when it is told: compete for a lock, stand in line, hold many.

Contract: as `bench/worker.py`: the standard library, and an adapter. Everything here gives stamps
and counts; `bench/stats.py` makes figures of them. A worker is one of several in a contest, so
beginning and end are moments on the clock that all processes share.

What a holder does decides how well a peer that polls fares, so there are three kinds. It *works*
for a random moment, and releases at a random phase so that nothing locks onto a poller. It *sleeps*
for one (some 60 microseconds more, as timers go): on one core a poller then looks only while the
lock is held, and hardly ever gets it; but the threads of one process meet only so (else the
interpreter lets each run alone for five milliseconds, in which it takes and releases a free lock).
Or it does *nothing*, and the lock is free for most of the time: a poller's best case.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.meter import Meter
from bench.meter import between as meter_between
from bench.peers.base import Adapter, AsyncMutex, Mutex
from bench.stats import SURELY, Turn

__all__ = [
    "HOLDERS",
    "Order",
    "Waiters",
    "abreast",
    "contend_tasks",
    "contend_threads",
    "hold",
    "rss",
]

HOLD = 50_000
"""Upper end of the random time, in nanoseconds, that a holder works or sleeps."""

LAST = 100_000_000
"""Who waits at the end, and can give up, may try for so many nanoseconds more: a poller's pause."""

now = time.monotonic_ns


def _work(nanoseconds: float) -> None:
    over = now() + nanoseconds
    while now() < over:
        pass


def _sleep(nanoseconds: float) -> None:
    time.sleep(nanoseconds / 1e9)


HOLDERS: dict[str, Callable[[float], None]] = {
    "works": _work,
    "sleeps": _sleep,
    "does nothing": lambda nanoseconds: None,
}


@dataclass
class Order:
    """One worker's part in a contest."""

    name: str
    waiters: list[int]  # their numbers, of those in the whole contest
    start: int  # begin to ask
    since: int  # what happens from here on counts
    stop: int  # do not ask again
    holder: str = "works"
    once: bool = False  # do not ask again
    cores: list[int] | None = None  # waiters alternate over them; None: as the process
    memory: bool = False  # measure the memory that waiters take; spoils the rest
    metered: bool = False  # ask the server what it had to do


class Waiters:
    """Threads that each ask, hold for a moment, and release; and ask again at once, or not."""

    def __init__(
        self, adapter: Adapter, order: Order, mutexes: dict[int, Mutex] | None = None
    ) -> None:
        self._adapter, self._order = adapter, order
        self._mutexes = mutexes or {}  # those that were made before
        self._turns: list[Turn] = []
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._reported, args=(waiter,)) for waiter in order.waiters
        ]
        for thread in self._threads:
            thread.start()

    def turns(self) -> list[Turn]:
        """When all have ended."""
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise RuntimeError("\n".join(self._failures[:3]))
        return self._turns

    def _reported(self, waiter: int) -> None:
        try:
            self._compete(waiter)
        except BaseException:
            self._failures.append(traceback.format_exc())

    def _compete(self, waiter: int) -> None:
        adapter, order = self._adapter, self._order
        if order.cores:
            os.sched_setaffinity(0, {order.cores[waiter % len(order.cores)]})
        made = self._mutexes.pop(waiter) if waiter in self._mutexes else None
        mutex: Mutex = made or adapter.make(order.name)
        chance, stop, hold = random.Random(waiter).random, order.stop, HOLDERS[order.holder]
        _sleep_until(order.start)
        while (began := now()) < stop:
            if not mutex.acquire(_patience(adapter, stop)):
                _may_give_up(adapter, stop)
                break
            got = now()
            if got < stop:
                hold(chance() * HOLD)
            queued = _in_line(adapter, mutex, began, got)
            left = now()
            mutex.release()
            self._turns.append(Turn(waiter, began, queued, got, left))
            if order.once:
                break


def _patience(adapter: Adapter, stop: int) -> float | None:
    return (stop + LAST - now()) / 1e9 if adapter.gives_up and stop != sys.maxsize else None


def _may_give_up(adapter: Adapter, stop: int) -> None:
    if not adapter.gives_up or now() < stop:
        raise RuntimeError("acquire gave up")


def contend_threads(
    adapter: Adapter,
    order: Order,
    meter: Meter | None,
    mutexes: dict[int, Mutex] | None = None,
) -> dict[str, Any]:
    asked = adapter.calls()
    waiters = Waiters(adapter, order, mutexes)
    _sleep_until(order.since)
    cpu = time.process_time()
    before = meter and meter.read()
    _sleep_until(order.stop)
    cpu = time.process_time() - cpu
    after = meter and meter.read()
    return {
        "turns": waiters.turns(),
        "cpu": cpu,
        "calls": _since(asked, adapter),
        "readings": [before, after],
    }


def _in_line(adapter: Adapter, mutex: Mutex | AsyncMutex, began: int, got: int) -> int | None:
    if adapter.knows_line:
        return adapter.queued(mutex)
    return began + SURELY if got - began > SURELY else None


def contend_tasks(adapter: Adapter, order: Order, meter: Meter | None) -> dict[str, Any]:
    return adapter.runner.run(_tasks(adapter, order, meter))


async def _tasks(adapter: Adapter, order: Order, meter: Meter | None) -> dict[str, Any]:
    """As the threads, but in one process: somebody holds the lock until all stand in line, and
    the time that counts begins then, however long it took."""
    import asyncio

    turns: list[Turn] = []
    settled, stop = 0, sys.maxsize

    async def compete(waiter: int) -> None:
        mutex: AsyncMutex = adapter.make(order.name)
        while (began := now()) < stop:
            if not await mutex.acquire(_patience(adapter, stop)):
                _may_give_up(adapter, stop)
                break
            got = now()
            await asyncio.sleep(0)  # a loop's timers are too coarse for more; others get to ask
            queued = _in_line(adapter, mutex, began, got)
            left = now()
            await mutex.release()
            turns.append(Turn(waiter, began, queued, got, left))

    first: AsyncMutex = adapter.make(order.name)
    await first.acquire(5.0)
    asked = adapter.calls()
    memory = rss() if order.memory else 0
    if order.metered and not adapter.knows_line:
        # They cannot be seen to stand in line, but their first requests connect.
        settled = now() + SURELY + len(order.waiters) * 500_000
        stop = settled + order.stop - order.since
    tasks = [asyncio.create_task(compete(waiter)) for waiter in order.waiters]
    await asyncio.sleep(0)  # each runs until it waits: for the lock, or for the store's answer
    if stop != sys.maxsize:
        await asyncio.sleep((settled - now()) / 1e9)
    while adapter.knows_line and adapter.in_line() < len(tasks):
        await asyncio.sleep(0.005)
    if order.memory:
        memory = rss() - memory
    before = meter and meter.read()  # holds up the loop, in which nothing happens yet
    cpu, since = time.process_time(), now()
    if stop == sys.maxsize:
        stop = since + order.stop - order.since
    await first.release()
    await asyncio.sleep((stop - now()) / 1e9)
    cpu = time.process_time() - cpu
    after = meter and meter.read()
    await asyncio.wait(tasks)
    failures = [task.exception() for task in tasks if task.exception() is not None]
    if failures:
        raise RuntimeError("\n".join(map(repr, failures[:3])))
    return {
        "turns": turns,
        "cpu": cpu,
        "calls": _since(asked, adapter),
        "bytes": memory,
        "readings": [before, after],
        "since": since,
        "stop": stop,
    }


def _since(asked: int | None, adapter: Adapter) -> int | None:
    calls = adapter.calls()
    return None if asked is None or calls is None else calls - asked


def abreast(adapter: Adapter, tasks: int, seconds: float) -> dict[str, Any]:
    """So many tasks, each with a lock that nobody else wants: what each pair took, and how long
    all of it."""
    return adapter.runner.run(_abreast(adapter, tasks, seconds))


async def _abreast(adapter: Adapter, tasks: int, seconds: float) -> dict[str, Any]:
    import asyncio

    mutexes: list[AsyncMutex] = [adapter.make(f"mine-{number}") for number in range(tasks)]

    async def cycle(mutex: AsyncMutex, over: int) -> list[int]:
        taken: list[int] = []
        while True:
            start = now()
            await mutex.acquire(None)
            await mutex.release()
            end = now()
            taken.append(end - start)
            if end >= over:
                return taken

    # The first time everybody connects; this one is not timed.
    await asyncio.gather(*(cycle(mutex, 0) for mutex in mutexes))
    began = now()
    over = began + int(seconds * 1e9)
    parts = await asyncio.gather(*(cycle(mutex, over) for mutex in mutexes))
    return {"taken": [one for part in parts for one in part], "nanoseconds": now() - began}


def hold(
    adapter: Adapter, number: int, rounds: int, trace: bool, meter: Meter | None = None
) -> dict[str, float]:
    """Acquire so many, keep them for some rounds of renewal, release them."""
    if trace:
        first: Mutex = adapter.make("first")
        first.acquire(5.0)  # starts whatever a client starts once
        first.release()
        tracemalloc.start()
    threads = _threads()
    before = tracemalloc.get_traced_memory()[0] if trace else rss()
    began = now()
    kept: list[Mutex] = [adapter.make(f"job-{serial}") for serial in range(number)]
    for mutex in kept:
        if not mutex.acquire(5.0):
            raise RuntimeError("a lock of its own is not free")
    acquired = now()
    if trace:
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for mutex in kept:  # a killed holder's lease would be in the way of the next
            mutex.release()
        return {"traced bytes per lease": (after - before) / number}
    before_keeping = meter and meter.read()
    found = adapter.keep(number, rounds)
    if meter and before_keeping:
        reading = meter.read()
        used = meter_between(before_keeping, reading)
        found["connections"] = reading.connections
        if "store requests per s" in found:  # what was asked, by the store's own books
            found["store requests per s"] = used.requests / used.seconds
    memory, threads = rss() - before, _threads() - threads
    releasing = now()
    lost = [mutex.release() is False for mutex in kept].count(True)
    released = now()
    return {
        "threads": threads,
        "bytes per lease": memory / number,
        **found,
        "acquire us": (acquired - began) / number / 1e3,
        "release us": (released - releasing) / number / 1e3,
        "acquire all s": (acquired - began) / 1e9,
        "release all s": (released - releasing) / 1e9,
        "lost": lost,
        "left over": adapter.left_over(),
    }


def rss() -> int:
    """Bytes of memory this process has now."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _threads() -> int:
    """Of this process, a library's own in C as well."""
    return len(os.listdir("/proc/self/task"))


def _sleep_until(moment: int) -> None:
    time.sleep(max(0, moment - now()) / 1e9)
