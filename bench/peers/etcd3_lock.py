"""`Lock` of etcd3 and of etcd3gw, as their documentation shows it, while nobody else wants it.

Neither waits. The target names the package: `etcd3://host:port`, `etcd3gw://host:port`.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        if not self._lock.acquire():
            raise RuntimeError("somebody else has it")
        return True


class ItsAdapter(Adapter):
    def __init__(self, package: str, address: str) -> None:
        host, _, port = address.partition(",")[0].partition(":")
        self.version = f"{package} {version(package)}"
        self._package = package
        self._client = importlib.import_module(package).client(host, int(port))

    def make(self, name: str) -> Lock:
        return Lock(self._client.lock(f"{self._package}-{name}", ttl=60))


def connect(target: str, **options: Any) -> Adapter:
    package, _, address = target.partition("://")
    return ItsAdapter(package, address)
