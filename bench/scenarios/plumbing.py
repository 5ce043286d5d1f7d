"""Uncontended acquire and release over memory://: what holdfast itself costs, without a store.

The floor is one raw loopback round trip pair (send, receive, twice), the least that acquire and
release over any network need. Same core: client and echo server on one core. Split: each on its
own, which is slower by the wake-up of the other core.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import holdfast
from bench.floors import loopback
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
    latencies,
    pin,
)
from holdfast import aio

__all__ = ["run"]

MESSAGE = b"x" * 64


def run(plan: Plan) -> Iterator[Result]:
    for placement in (SAME, SPLIT):
        for case, goals in CASES.items():
            measured = in_child(_measure, plan, case, placement)
            yield Result(
                "plumbing",
                case,
                placement,
                "holdfast memory://",
                "raw loopback round trip pair",
                "p50",
                measured,
                goals if placement == SAME else (),
            )


CASES: dict[str, tuple[Goal, ...]] = {
    "acquire, release": (Goal("ratio", 1.0),),
    "with": (Goal("ratio", 1.0),),
    "async with": (),
}


def _measure(plan: Plan, case: str, placement: str) -> Comparison:
    here, there = cores()
    pin(here)
    count = plan.amount(3000, 30)
    with loopback(here if placement == SAME else there) as client:

        def floor() -> Figures:
            return round_trips(client, count)

        floor()  # the first round trips of a connection are slow
        if case == "async with":
            return asyncio.run(_aio(plan, count, floor))
        with holdfast.connect("memory://plumbing") as locks:
            lock = locks.lock("one")
            take = by_with if case == "with" else by_hand
            take(lock, count)
            return compare(plan.pairs, "p50", lambda: take(lock, count), floor)


async def _aio(plan: Plan, count: int, floor: Callable[[], Figures]) -> Comparison:
    async with aio.connect("memory://plumbing") as locks:
        lock = locks.lock("one")
        loop = asyncio.get_running_loop()

        def subject() -> Figures:
            # Uncontended, it never suspends: driven by hand, as a task's step would.
            coroutine = by_async_with(lock, count)
            try:
                coroutine.send(None)
            except StopIteration as stop:
                figures: Figures = stop.value
                return figures
            raise RuntimeError("an uncontended acquire over memory:// suspended")

        assert loop.is_running()
        return compare(plan.pairs, "p50", subject, floor)


def round_trips(client: socket.socket, count: int) -> Figures:
    now, send, receive = time.perf_counter_ns, client.sendall, client.recv
    taken: list[int] = []
    for _ in range(count):
        start = now()
        send(MESSAGE)
        receive(4096)
        send(MESSAGE)
        receive(4096)
        taken.append(now() - start)
    return latencies(taken)


def by_hand(lock: holdfast.Lock, count: int) -> Figures:
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(count):
        start = now()
        lease = lock.acquire()
        assert lease is not None
        lease.release()
        taken.append(now() - start)
    return latencies(taken)


def by_with(lock: holdfast.Lock, count: int) -> Figures:
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(count):
        start = now()
        with lock:
            pass
        taken.append(now() - start)
    return latencies(taken)


async def by_async_with(lock: aio.Lock, count: int) -> Figures:
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(count):
        start = now()
        async with lock:
            pass
        taken.append(now() - start)
    return latencies(taken)
