"""holdfast itself, over any backend URL: by hand, `with`, or `async with`; threads or tasks.

The one adapter that knows when a waiter stands in line, because the store says so. Counting that
(`bench/counted.py`) is switched on where waiters compete or leases are kept.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
import time
from typing import Any

import holdfast
from bench.counted import Counted, counted
from bench.peers.base import Adapter, AsyncAdapter
from bench.stats import Figures
from holdfast import aio

__all__ = ["connect"]


class Lock:
    """By hand: the lease is kept between acquire and release."""

    lease: holdfast.Lease | None = None

    def __init__(self, lock: holdfast.Lock) -> None:
        self.lock = lock

    def acquire(self, timeout: float | None) -> object:
        self.lease = self.lock.acquire(timeout=timeout)
        return self.lease

    def release(self) -> bool:
        assert self.lease is not None
        return self.lease.release()


class AsyncLock:
    lease: aio.Lease | None = None

    def __init__(self, lock: aio.Lock) -> None:
        self.lock = lock

    async def acquire(self, timeout: float | None) -> object:
        self.lease = await self.lock.acquire(timeout=timeout)
        return self.lease

    async def release(self) -> bool:
        assert self.lease is not None
        return await self.lease.release()


class _Common(Adapter):
    version = f"holdfast {holdfast.__version__}"
    counts: Counted | None = None

    def queued(self, mutex: Lock | AsyncLock) -> int | None:
        if self.counts is None or mutex.lease is None:
            return None
        return self.counts.queued.pop(mutex.lease._hold.claim.owner, None)

    def in_line(self) -> int:
        return 0 if self.counts is None else len(self.counts.queued)

    @property
    def knows_line(self) -> bool:  # type: ignore[override]
        return self.counts is not None

    def calls(self) -> int | None:
        return None if self.counts is None else self.counts.requests()


class Threads(_Common):
    def __init__(
        self, url: str, client: dict[str, Any], count: bool, options: dict[str, Any]
    ) -> None:
        self.locks = holdfast.connect(url, **client)
        self.counts = counted(self.locks) if count else None
        self._options = options

    def make(self, name: str) -> Lock:
        return Lock(self.locks.lock(name, **self._options))

    def keep(self, number: int, rounds: int) -> Figures:
        counts = self.counts
        assert counts is not None
        calls, asked, renewed = len(counts.renewals), counts.requests(), counts.renewed
        statements = 0 if counts.exchanges is None else counts.exchanges.statements
        enough = threading.Event()
        counts.after(renewed + rounds * number, enough.set)
        cpu, began = time.process_time(), time.monotonic()
        if not enough.wait(self._options["ttl"] * rounds):
            raise RuntimeError("the renewals did not come")
        cpu, took = time.process_time() - cpu, time.monotonic() - began
        sizes, renewed = counts.renewals[calls:], counts.renewed - renewed
        found: Figures = {}
        if counts.exchanges is not None:
            said = counts.exchanges.statements - statements
            found["statements per round and 1000 leases"] = said / renewed * 1000
            found["connections"] = counts.exchanges.connections
        keepers = [t for t in threading.enumerate() if t.name.startswith("holdfast-keeper")]
        return {
            "keeper threads": len(keepers),
            "store requests per s": (counts.requests() - asked) / took,
            "renew calls per round and 1000 leases": len(sizes) / renewed * 1000,
            "largest batch": max(sizes),
            "renewal CPU us per lease": cpu / renewed * 1e6,
            "renewal CPU s per round": cpu / renewed * number,
            **found,
        }

    def left_over(self) -> int:
        return len(self.locks.inspect())

    def close(self) -> None:
        self.locks.close()


class With(Threads):
    def cycles(self, mutex: Lock, seconds: float) -> list[int]:
        now, lock = time.monotonic_ns, mutex.lock
        taken: list[int] = []
        over = now() + int(seconds * 1e9)
        while not taken or now() < over:
            for _ in range(10):
                start = now()
                with lock:
                    pass
                taken.append(now() - start)
        return taken


class Tasks(_Common, AsyncAdapter):
    def __init__(
        self, url: str, client: dict[str, Any], count: bool, options: dict[str, Any]
    ) -> None:
        self.locks = aio.connect(url, **client)
        self.counts = counted(self.locks) if count else None
        self._options = options

    def make(self, name: str) -> AsyncLock:
        return AsyncLock(self.locks.lock(name, **self._options))

    def cycles(self, mutex: AsyncLock, seconds: float) -> list[int]:
        return self.runner.run(self._cycles(mutex.lock, seconds))

    async def _cycles(self, lock: aio.Lock, seconds: float) -> list[int]:
        now = time.monotonic_ns
        taken: list[int] = []
        over = now() + int(seconds * 1e9)
        while not taken or now() < over:
            for _ in range(10):
                start = now()
                async with lock:
                    pass
                taken.append(now() - start)
        return taken

    def stripes(self, count: int, tasks: int, hold: float, seconds: float) -> int:
        return self.runner.run(self._stripes(count, tasks, hold, seconds))

    async def _stripes(self, count: int, tasks: int, hold: float, seconds: float) -> int:
        stripes, had = self.locks.stripes(f"bench {count}", count, **self._options), 0
        over = time.monotonic() + seconds

        async def buyer() -> None:
            nonlocal had
            while time.monotonic() < over:
                async with stripes.any():
                    await asyncio.sleep(hold)
                had += time.monotonic() < over

        await asyncio.gather(*(buyer() for _ in range(tasks)))
        return had

    async def aclose(self) -> None:
        await self.locks.close()


STYLES: dict[str, type[Threads] | type[Tasks]] = {
    "by hand": Threads,
    "with": With,
    "async with": Tasks,
}


def connect(
    target: str,
    *,
    style: str = "by hand",
    count: bool = False,
    client: dict[str, Any] | None = None,
    imports: tuple[str, ...] = (),
    **options: Any,
) -> Adapter:
    """`imports`: modules that make the target's scheme known; `client`: options of the client;
    `options`: of each lock."""
    for module in imports:
        importlib.import_module(module)
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # losses are counted, not told
    return STYLES[style](target, client or {}, count, options)
