"""portalocker, as its documentation shows it: `Lock(path, timeout=...)`, which tries every 250 ms.

Its own timeout of five seconds is raised: with two hundred waiters it would be a failure.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.peers.base import FOR_EVER, Adapter

__all__ = ["connect"]

portalocker: Any = importlib.import_module("portalocker")  # as in filelock.py


class Lock:
    def __init__(self, path: Path) -> None:
        self._lock = portalocker.Lock(str(path), timeout=FOR_EVER)

    def acquire(self, timeout: float | None) -> bool:
        self._lock.acquire(timeout)  # raises LockException
        return True

    def release(self) -> None:
        self._lock.release()


class PortalockerAdapter(Adapter):
    version = f"portalocker {portalocker.__version__}"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def make(self, name: str) -> Lock:
        return Lock(self._folder / f"{name}.portalocker")


def connect(target: str, **options: Any) -> Adapter:
    return PortalockerAdapter(target)
