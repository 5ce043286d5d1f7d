"""kazoo's `Lock`, as its documentation shows it; one client for each worker."""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

kazoo: Any = importlib.import_module("kazoo.client")  # as in filelock.py
LockTimeout: Any = importlib.import_module("kazoo.exceptions").LockTimeout


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        try:
            return self._lock.acquire(timeout=timeout)
        except LockTimeout:
            return False


class KazooAdapter(Adapter):
    version = f"kazoo {version('kazoo')}"
    gives_up = True

    def __init__(self, address: str) -> None:
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self._client = kazoo.KazooClient(address)
        self._client.start()

    def make(self, name: str) -> Lock:
        return Lock(self._client.Lock(f"/kazoo/{name}"))

    def close(self) -> None:
        self._client.stop()
        self._client.close()


def connect(target: str, **options: Any) -> Adapter:
    return KazooAdapter(target)
