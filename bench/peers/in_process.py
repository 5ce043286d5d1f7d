"""Locks of one process: `threading.Lock`, `asyncio.Lock`, and a fair lock made of bare locks.

The last is the floor of fair hand-over between threads: it does the least that is needed, and
nothing for safety: no lease, no token, no clean-up.
"""

from __future__ import annotations

import asyncio
import platform
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from bench.peers.base import Adapter, AsyncAdapter

__all__ = ["connect"]


class ThreadLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, timeout: float | None) -> bool:
        return self._lock.acquire(True, -1 if timeout is None else timeout)


class AsyncioLock:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def acquire(self, timeout: float | None) -> bool:
        return await self._lock.acquire()  # the worker's limit ends it

    async def release(self) -> None:
        self._lock.release()


class FifoLock:
    """Whoever releases it opens the next one's gate."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._gates: deque[threading.Lock] = deque()
        self._held = False

    def acquire(self, timeout: float | None) -> bool:
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
        return gate.acquire()  # the worker's limit ends it

    def release(self) -> None:
        with self._mutex:
            if self._gates:
                self._gates.popleft().release()
            else:
                self._held = False


class InProcess(Adapter):
    """All waiters of a name share one object."""

    version = f"{platform.python_implementation()} {platform.python_version()}"

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._locks: defaultdict[str, Any] = defaultdict(kind)

    def make(self, name: str) -> Any:
        return self._locks[name]


class InLoop(InProcess, AsyncAdapter):
    """The same for tasks."""


KINDS: dict[str, Callable[[], Any]] = {
    "threading.Lock": ThreadLock,
    "asyncio.Lock": AsyncioLock,
    "fifo": FifoLock,
}


def connect(target: str, **options: Any) -> Adapter:
    kind = KINDS[target]
    return InLoop(kind) if kind is AsyncioLock else InProcess(kind)
