"""python-redis-lock: SET NX, and BLPOP on a list into which the holder pushes when it leaves."""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers.base import CONNECTIONS, Adapter

__all__ = ["connect"]

redis: Any = importlib.import_module("redis")  # as in filelock.py
redis_lock: Any = importlib.import_module("redis_lock")

TTL = 30


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        return self._lock.acquire(timeout=timeout)


class PythonRedisLock(Adapter):
    version = f"python-redis-lock {redis_lock.__version__} on redis-py {redis.__version__}"

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, max_connections=CONNECTIONS)

    def make(self, name: str) -> Lock:
        return Lock(redis_lock.Lock(self._client, f"python-redis-lock:{name}", expire=TTL))

    def close(self) -> None:
        self._client.close()


def connect(target: str, **options: Any) -> Adapter:
    return PythonRedisLock(target)
