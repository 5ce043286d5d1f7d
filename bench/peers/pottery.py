"""pottery's `Redlock` with one master or several: threads for every acquire and release, tries
again within 200 ms."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import CONNECTIONS, Adapter, masters

__all__ = ["connect"]

redis: Any = importlib.import_module("redis")  # as in filelock.py
pottery: Any = importlib.import_module("pottery")


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


class Pottery(Adapter):
    version = f"pottery {version('pottery')}"
    gives_up = True

    def __init__(self, url: str) -> None:
        self._clients = {
            redis.Redis.from_url(one, max_connections=CONNECTIONS) for one in masters(url)
        }

    def make(self, name: str) -> Lock:
        return Lock(pottery.Redlock(key=name, masters=self._clients))

    def close(self) -> None:
        for client in self._clients:
            client.close()


def connect(target: str, **options: Any) -> Adapter:
    return Pottery(target)
