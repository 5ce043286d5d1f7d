"""A thousand tasks wait for one computation: how long from its end until everybody has the value?

They stand in line while it runs, and are let in together when it is done; each then reads the value
and leaves. Once with a thousand, once with ten: the rest is what the machine makes of the crowd.
(In SQL a hundred: they share its few connections. In ZooKeeper each is sent the whole line.) All
tasks are in one process, and share a client; nobody is pinned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import holdfast
from bench.entrants import Entrant
from bench.peers import TASKS
from bench.session import Case, Comparison, Plan
from bench.stats import Figures, quantile
from holdfast import aio

__all__ = ["run"]

WAITERS, FEW = 1000, 10
KEY = "all have it ms"


def run(plan: Plan) -> Iterator[Case]:
    many = int(plan.amount(min(WAITERS, plan.field.store.crowd), 20))
    runs: dict[str, list[Figures]] = {}
    for target in plan.field.targets(TASKS):
        for number in range(plan.pairs):
            for waiters in (many, FEW) if number % 2 else (FEW, many):
                figures = asyncio.run(_once(target, waiters))
                runs.setdefault(_label(target, waiters), []).append(figures)
    if runs:
        pairs = [(_label(t, many), _label(t, FEW)) for t in plan.field.targets(TASKS)]
        yield Case(
            "once",
            f"{many} waiters",
            "not pinned",
            runs,
            [Comparison(crowd, few, KEY) for crowd, few in pairs],
            [],
            {target.label: holdfast.__version__ for target in plan.field.targets(TASKS)},
        )


def _label(target: Entrant, waiters: int) -> str:
    return f"{target.label}, {waiters} waiters"


async def _once(target: Entrant, waiters: int) -> Figures:
    name = f"once-{time.monotonic_ns()}"
    done = 0.0
    async with (
        aio.connect(target.target, request_timeout=60) as locks,
        aio.connect(target.target, request_timeout=60) as watcher,
    ):

        async def compute() -> str:
            nonlocal done
            while True:
                lines = await watcher.inspect(f"once:{name}")
                if sum(len(line.waiters) for line in lines) >= waiters:
                    break
                await asyncio.sleep(0.05)
            done = time.perf_counter()
            return "x" * 512

        async def wait() -> float:
            await locks.once(name, 600, compute, lease=300).get()
            return time.perf_counter()

        ended = await asyncio.gather(*(wait() for _ in range(waiters + 1)))
    taken = sorted((moment - done) * 1e3 for moment in ended)
    return {
        "half have it ms": quantile(taken, 0.5),
        "p99 ms": quantile(taken, 0.99),
        KEY: taken[-1],
    }
