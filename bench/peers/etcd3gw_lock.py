"""etcd3gw's `Lock`, as its documentation shows it, while nobody else wants it: it does not wait."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

etcd3gw: Any = importlib.import_module("etcd3gw")  # as in filelock.py


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        if not self._lock.acquire():
            raise RuntimeError("somebody else has it")
        return True


class ItsAdapter(Adapter):
    version = f"etcd3gw {version('etcd3gw')}"

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(",")[0].partition(":")
        self._client = etcd3gw.client(host, int(port))

    def make(self, name: str) -> Lock:
        return Lock(self._client.lock(f"etcd3gw-{name}", ttl=60))


def connect(target: str, **options: Any) -> Adapter:
    return ItsAdapter(target)
