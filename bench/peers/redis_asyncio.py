"""redis-py's `Lock` for asyncio, with hiredis: as `redis_py.py`, one connection for each task."""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers.base import CONNECTIONS, AsyncAdapter

__all__ = ["connect"]

redis: Any = importlib.import_module("redis.asyncio")  # as in filelock.py
VERSION: str = importlib.import_module("redis").__version__

TTL = 30.0


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    async def acquire(self, timeout: float | None) -> object:
        return await self._lock.acquire(blocking_timeout=timeout)


class RedisAsyncio(AsyncAdapter):
    version = f"redis.asyncio {VERSION}"
    gives_up = True

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, max_connections=CONNECTIONS)

    def make(self, name: str) -> Lock:
        return Lock(self._client.lock(f"redis-asyncio:{name}", timeout=TTL))

    async def aclose(self) -> None:
        await self._client.aclose()


def connect(target: str, **options: Any) -> AsyncAdapter:
    return RedisAsyncio(target)
