"""Ten thousand tasks wait for one lock: memory for each, and whether a hand-over costs more.

The floor is the same lock with ten waiters: a change of owner must not cost more because more wait
behind (it would, if anything walked the line). `asyncio.Lock` runs beside it, in the same manner,
to show what the machine itself makes of ten thousand tasks (garbage collection, caches).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from bench.measure import (
    SAME,
    Comparison,
    Figures,
    Goal,
    Plan,
    Result,
    compare,
    cores,
    in_child,
    pin,
    rss,
)
from holdfast import aio

__all__ = ["run"]

KEY = "us per change"
Crowd = Callable[[int, int], Coroutine[Any, Any, Figures]]


def run(plan: Plan) -> Iterator[Result]:
    many, few = plan.amount(10_000, 100), 10
    for subject, crowd in SUBJECTS.items():
        goals = (Goal("ratio", 2.0),) if crowd is of_holdfast else ()
        yield Result(
            "crowd",
            f"{many} tasks",
            SAME,
            subject,
            f"{few} tasks",
            KEY,
            in_child(_measure, plan, crowd, many, few),
            goals,
        )


def _measure(plan: Plan, crowd: Crowd, many: int, few: int) -> Comparison:
    pin(cores()[0])
    changes = plan.amount(10_000, 200)
    memory = in_child(_alone, crowd, many)
    measured = compare(
        plan.pairs,
        KEY,
        lambda: asyncio.run(crowd(many, changes)),
        lambda: asyncio.run(crowd(few, changes)),
    )
    measured.figures["bytes per waiter"] = memory["bytes per waiter"]
    return measured


def _alone(crowd: Crowd, many: int) -> Figures:
    """Memory is counted in a process that has not had it before."""
    return asyncio.run(crowd(many, 1))


async def of_holdfast(waiters: int, changes: int) -> Figures:
    async with aio.connect("memory://crowd") as locks:
        lock = locks.lock("one")
        first = await lock.acquire()
        assert first is not None

        async def turn() -> None:
            lease = await lock.acquire()
            assert lease is not None
            await asyncio.sleep(0)
            await lease.release()

        return await _crowd(turn, first.release, waiters, changes)


async def of_asyncio(waiters: int, changes: int) -> Figures:
    lock = asyncio.Lock()
    await lock.acquire()

    async def turn() -> None:
        await lock.acquire()
        await asyncio.sleep(0)
        lock.release()

    async def let_go() -> None:
        lock.release()

    return await _crowd(turn, let_go, waiters, changes)


SUBJECTS: dict[str, Crowd] = {"holdfast memory://": of_holdfast, "asyncio.Lock": of_asyncio}


async def _crowd(
    turn: Callable[[], Coroutine[Any, Any, None]],
    let_go: Callable[[], Coroutine[Any, Any, Any]],
    waiters: int,
    changes: int,
) -> Figures:
    """All stand in line; then the lock goes round until it has changed hands so many times."""
    done = 0
    took = 0.0

    async def work() -> None:
        nonlocal done, took
        while done < changes:
            await turn()
            done += 1
            if done == changes:
                took = time.perf_counter() - began

    memory = rss()
    tasks = [asyncio.create_task(work()) for _ in range(waiters)]
    await asyncio.sleep(0)  # each task runs until it waits
    memory = rss() - memory
    began = time.perf_counter()
    await let_go()
    await asyncio.gather(*tasks)
    return {KEY: took / changes * 1e6, "bytes per waiter": memory / waiters}
