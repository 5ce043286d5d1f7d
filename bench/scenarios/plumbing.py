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
    Goal,
    Plan,
    Result,
    compare_latencies,
    cores,
    in_child,
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


CHUNK = 100
"""So many operations at a turn: a few milliseconds."""


def _measure(plan: Plan, case: str, placement: str) -> Comparison:
    here, there = cores()
    pin(here)
    chunks = plan.amount(30, 1)
    with loopback(here if placement == SAME else there) as client:

        def floor() -> list[int]:
            return round_trips(client)

        floor()  # the first round trips of a connection are slow
        if case == "async with":
            return asyncio.run(_aio(plan, chunks, floor))
        with holdfast.connect("memory://plumbing") as locks:
            lock = locks.lock("one")
            take = by_with if case == "with" else by_hand
            take(lock)
            return compare_latencies(plan.pairs, chunks, lambda: take(lock), floor)


async def _aio(plan: Plan, chunks: int, floor: Callable[[], list[int]]) -> Comparison:
    async with aio.connect("memory://plumbing") as locks:
        lock = locks.lock("one")

        def subject() -> list[int]:
            # Uncontended, it never suspends: driven by hand, as a task's step would.
            coroutine = by_async_with(lock)
            try:
                coroutine.send(None)
            except StopIteration as stop:
                taken: list[int] = stop.value
                return taken
            raise RuntimeError("an uncontended acquire over memory:// suspended")

        subject()
        return compare_latencies(plan.pairs, chunks, subject, floor)


def round_trips(client: socket.socket) -> list[int]:
    now, send, receive = time.perf_counter_ns, client.sendall, client.recv
    taken: list[int] = []
    for _ in range(CHUNK):
        start = now()
        send(MESSAGE)
        receive(4096)
        send(MESSAGE)
        receive(4096)
        taken.append(now() - start)
    return taken


def by_hand(lock: holdfast.Lock) -> list[int]:
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(CHUNK):
        start = now()
        lease = lock.acquire()
        assert lease is not None
        lease.release()
        taken.append(now() - start)
    return taken


def by_with(lock: holdfast.Lock) -> list[int]:
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(CHUNK):
        start = now()
        with lock:
            pass
        taken.append(now() - start)
    return taken


async def by_async_with(lock: aio.Lock) -> list[int]:
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(CHUNK):
        start = now()
        async with lock:
            pass
        taken.append(now() - start)
    return taken
