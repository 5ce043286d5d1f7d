"""tooz's coordinator: over Redis it wraps redis-py's `Lock`, which tries every 100 ms; over
ZooKeeper it wraps kazoo's; over etcd it tries once a second.

Nothing calls its heartbeat: no lock here is held for as long as the thirty seconds that it lasts.
"""

from __future__ import annotations

import importlib
import uuid
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

coordination: Any = importlib.import_module("tooz.coordination")  # as in filelock.py


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        try:
            return self._lock.acquire(blocking=True if timeout is None else timeout)
        except Exception as error:
            if type(error).__name__ in ("LockTimeout", "RetryError"):  # kazoo's; over etcd
                return False
            raise


class Tooz(Adapter):
    version = f"tooz {version('tooz')}"
    gives_up = True

    def __init__(self, url: str) -> None:
        # Its URL has no number of a database.
        where = url.rpartition("/")[0]
        self._coordinator = coordination.get_coordinator(where, uuid.uuid4().hex.encode())
        self._coordinator.start()

    def make(self, name: str) -> Lock:
        return Lock(self._coordinator.get_lock(name.encode()))

    def close(self) -> None:
        self._coordinator.stop()


def connect(target: str, **options: Any) -> Adapter:
    return Tooz(target)
