"""redis-py's own `Lock`, with hiredis: tries every 100 ms. A timeout, as its documentation advises.

Its pool of at most a hundred connections is made larger, or two hundred threads would fail.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers.base import CONNECTIONS, Adapter

__all__ = ["connect"]

redis: Any = importlib.import_module("redis")  # as in filelock.py
hiredis: Any = importlib.import_module("hiredis")

TTL = 30.0


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        return self._lock.acquire(blocking_timeout=timeout)


class RedisPy(Adapter):
    version = f"redis-py {redis.__version__} with hiredis {hiredis.__version__}"
    gives_up = True

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, max_connections=CONNECTIONS)

    def make(self, name: str) -> Lock:
        return Lock(self._client.lock(f"redis-py:{name}", timeout=TTL))

    def close(self) -> None:
        self._client.close()


def connect(target: str, **options: Any) -> Adapter:
    return RedisPy(target)
