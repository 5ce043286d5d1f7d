"""aetcd's `Lock`: asyncio, grpcio; one client for all tasks."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import AsyncAdapter

__all__ = ["connect"]

aetcd: Any = importlib.import_module("aetcd")  # as in filelock.py


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    async def acquire(self, timeout: float | None) -> object:
        return await self._lock.acquire(timeout=timeout)


class Aetcd(AsyncAdapter):
    version = f"aetcd {version('aetcd')}"
    gives_up = True

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(",")[0].partition(":")
        self._client = self.runner.run(self._connected(host, int(port)))

    async def _connected(self, host: str, port: int) -> Any:
        client = aetcd.Client(host, port)
        await client.connect()
        return client

    def make(self, name: str) -> Lock:
        return Lock(self._client.lock(f"aetcd-{name}".encode(), ttl=60))

    async def aclose(self) -> None:
        await self._client.close()


def connect(target: str, **options: Any) -> AsyncAdapter:
    return Aetcd(target)
