"""sherlock's `RedisLock`: tries every 100 ms. Its timeout of ten seconds is raised."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import CONNECTIONS, FOR_EVER, Adapter

__all__ = ["connect"]

redis: Any = importlib.import_module("redis")  # as in filelock.py
sherlock: Any = importlib.import_module("sherlock")


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        self._lock.timeout = FOR_EVER if timeout is None else timeout
        try:
            return self._lock.acquire()
        except sherlock.LockTimeoutException:
            return False


class Sherlock(Adapter):
    version = f"sherlock {version('sherlock')}"
    gives_up = True

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, max_connections=CONNECTIONS)

    def make(self, name: str) -> Lock:
        return Lock(sherlock.RedisLock(f"sherlock:{name}", client=self._client))

    def close(self) -> None:
        self._client.close()


def connect(target: str, **options: Any) -> Adapter:
    return Sherlock(target)
