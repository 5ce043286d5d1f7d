"""The floor of file locks: one system call to lock, one to unlock, the kernel wakes the next."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]


class Flock:
    """The lock belongs to the open file, so each waiter opens its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self, timeout: float | None) -> bool:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # it has no timeout; the worker's limit ends it
        return True

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        os.close(self._file)


class FlockAdapter(Adapter):
    version = f"Linux {platform.release().partition('-')[0]}"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def make(self, name: str) -> Flock:
        return Flock(self._folder / f"{name}.flock")


def connect(target: str, **options: Any) -> Adapter:
    return FlockAdapter(target)
