"""filelock, as its documentation shows it: `FileLock(path)`, which tries every 50 ms."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

# Not an import statement: the package is installed in the peer's environment only, so a type
# checker would miss it.
filelock: Any = importlib.import_module("filelock")


class Lock:
    def __init__(self, path: Path) -> None:
        self._lock = filelock.FileLock(path)

    def acquire(self, timeout: float | None) -> bool:
        self._lock.acquire(timeout)  # raises Timeout
        return True

    def release(self) -> None:
        self._lock.release()


class FilelockAdapter(Adapter):
    version = f"filelock {filelock.__version__}"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def make(self, name: str) -> Lock:
        return Lock(self._folder / f"{name}.filelock")


def connect(target: str, **options: Any) -> Adapter:
    return FilelockAdapter(target)
