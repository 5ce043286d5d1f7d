"""What a lock must offer to be measured: the contract of everything in `bench/peers/`.

Contract: an adapter is made in a worker process from its target (a URL, a folder; its own
business), and makes one lock object for each waiter. `acquire(timeout)` returns something true when
it holds; None waits for ever. Adapters add nothing: the peer runs with its own defaults, and an
adapter's modules import the standard library and the one package that is measured, because a
worker runs in that package's own environment.
Partner: `bench/worker.py`, which calls all of this.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from bench.stats import Figures

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "CONNECTIONS",
    "FOR_EVER",
    "Adapter",
    "AsyncAdapter",
    "AsyncMutex",
    "Mutex",
    "Starter",
    "masters",
    "timed",
]

FOR_EVER = 86_400.0
"""For a peer whose own limit on waiting would make two hundred waiters a failure."""

CONNECTIONS = 20_000
"""As many as a peer may need; some pools refuse more than a hundred."""


class Mutex(Protocol):
    """One waiter's lock; blocking."""

    def acquire(self, timeout: float | None) -> object: ...

    def release(self) -> object: ...


class AsyncMutex(Protocol):
    """The same for a task."""

    def acquire(self, timeout: float | None) -> Awaitable[object]: ...

    def release(self) -> Awaitable[object]: ...


class Adapter:
    """A lock library bound to one target. Made and used by one worker process."""

    version = ""

    def make(self, name: str) -> Any:
        """A `Mutex` of that name for one waiter, or an `AsyncMutex` when the kind is tasks."""
        raise NotImplementedError

    def place(self, core: int) -> None:
        """Pin the other side, the server, to this core, if there is one and it is ours."""

    def cycles(self, mutex: Any, seconds: float) -> list[int]:
        """Acquire and release again and again: the nanoseconds that each pair took."""
        return timed(mutex, seconds)

    def queued(self, mutex: Any) -> int | None:
        """When the last acquire stood in line, if the store tells; only if `knows_line`."""
        return None

    def in_line(self) -> int:
        """How many stand in line now, if that is known."""
        return 0

    knows_line = False

    gives_up = False
    """Its acquire is false when the time is up. Else whoever waits at the end of a contest must get
    the lock once more: two hundred pollers need seconds for that."""

    def calls(self) -> int | None:
        """How much was asked of the store so far, if that is counted."""
        return None

    def keep(self, number: int, rounds: int) -> Figures:
        """So many leases are held: keep them for some rounds of renewal, if there is such a thing,
        and say what that took."""
        return {}

    def stripes(self, count: int, tasks: int, hold: float, seconds: float) -> int:
        """So many tasks take any of so many segments, again and again: how often they had one."""
        raise NotImplementedError

    def left_over(self) -> int:
        """How many locks the store still knows, when all were released."""
        return 0

    @functools.cached_property
    def runner(self) -> asyncio.Runner:
        """The event loop of this adapter's tasks; one for its whole life."""
        import asyncio  # most workers need none, and it takes longer to import than all the rest

        return asyncio.Runner()

    def close(self) -> None:
        """End what was started."""
        if "runner" in vars(self):
            self.runner.close()


class AsyncAdapter(Adapter):
    """Its mutexes are for tasks, and its connections belong to its loop."""

    def cycles(self, mutex: Any, seconds: float) -> list[int]:
        return self.runner.run(timed_in_task(mutex, seconds))

    async def aclose(self) -> None:
        """End what the loop has."""

    def close(self) -> None:
        self.runner.run(self.aclose())
        super().close()


def masters(target: str) -> list[str]:
    """One URL, or one for each of `host:port,host:port,...`."""
    if "://" in target:
        return [target]
    return [f"redis://{address}/0" for address in target.split(",")]


class Starter(Protocol):
    """What a peer's module has under the name `connect`."""

    def __call__(self, target: str, **options: Any) -> Adapter: ...


def timed(mutex: Mutex, seconds: float) -> list[int]:
    now, acquire, release = time.monotonic_ns, mutex.acquire, mutex.release
    taken: list[int] = []
    over = now() + int(seconds * 1e9)
    while not taken or now() < over:
        for _ in range(10):
            start = now()
            acquire(None)
            release()
            taken.append(now() - start)
    return taken


async def timed_in_task(mutex: AsyncMutex, seconds: float) -> list[int]:
    now, acquire, release = time.monotonic_ns, mutex.acquire, mutex.release
    taken: list[int] = []
    over = now() + int(seconds * 1e9)
    while not taken or now() < over:
        for _ in range(10):
            start = now()
            await acquire(None)
            await release()
            taken.append(now() - start)
    return taken
