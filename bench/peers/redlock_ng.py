"""redlock-ng with one master or several: tries again after 100 to 300 ms.

It has no timeout: it waits for ever, or tries four times. Here it waits; the worker's limit ends
it.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter, masters

__all__ = ["connect"]

redlock: Any = importlib.import_module("redlock")  # as in filelock.py

TTL_MS = 30_000


class Lock:
    def __init__(self, redlock: Any, name: str) -> None:
        self._redlock, self._name = redlock, f"redlock-ng:{name}"
        self._held: Any = None

    def acquire(self, timeout: float | None) -> object:
        self._held = self._redlock.acquire(self._name, TTL_MS, blocking=True)
        return self._held

    def release(self) -> None:
        self._redlock.release(self._held)


class RedlockNg(Adapter):
    version = f"redlock-ng {version('redlock-ng')}"

    def __init__(self, url: str) -> None:
        self._redlock = redlock.Redlock(masters(url))

    def make(self, name: str) -> Lock:
        return Lock(self._redlock, name)

    def close(self) -> None:
        for client in self._redlock.client.instances:
            client.close()


def connect(target: str, **options: Any) -> Adapter:
    return RedlockNg(target)
