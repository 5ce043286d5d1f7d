"""aioredlock on several masters: three tries, 100 to 300 ms apart."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import AsyncAdapter, masters

__all__ = ["connect"]

aioredlock: Any = importlib.import_module("aioredlock")  # as in filelock.py


class Lock:
    def __init__(self, manager: Any, name: str) -> None:
        self._manager, self._name = manager, f"aioredlock:{name}"
        self._held: Any = None

    async def acquire(self, timeout: float | None) -> object:
        self._held = await self._manager.lock(self._name, lock_timeout=30)
        return self._held

    async def release(self) -> None:
        await self._manager.unlock(self._held)


class Aioredlock(AsyncAdapter):
    version = f"aioredlock {version('aioredlock')}"

    def __init__(self, target: str) -> None:
        self._manager = aioredlock.Aioredlock(masters(target))

    def make(self, name: str) -> Lock:
        return Lock(self._manager, name)

    async def aclose(self) -> None:
        await self._manager.destroy()


def connect(target: str, **options: Any) -> AsyncAdapter:
    return Aioredlock(target)
