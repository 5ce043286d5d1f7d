"""What the locks protect: a resource that checks fencing tokens, shared by all processes.

Contract: `write` accepts a token that is no smaller than the largest it has seen for that name, and
appends each write it accepts to a log, in that order. Who is killed inside leaves no write in the
log that the next one does not know of: the largest token is raised first.

Hazard: a forked child shares its parent's file locks. It closes what it inherited (`drop`), so that
a lock whose owner is killed dies with it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.stress.record import NAMES, now

__all__ = ["Resource", "Write", "writes"]

_TOKEN = struct.Struct("<q")
_WRITE = struct.Struct("<qdI")


class Write(NamedTuple):
    """One that was accepted."""

    name: str
    token: int
    time: float
    process: int


class Resource:
    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._process = process
        self._mine = threading.local()  # file locks exclude one another only between descriptors
        self._all: list[int] = []

    def write(self, name: int, token: int) -> bool:
        """False: a larger token has written before."""
        guard, log = self._open(name)
        fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            seen = os.pread(guard, _TOKEN.size, 0)
            if seen and token < _TOKEN.unpack(seen)[0]:
                return False
            os.pwrite(guard, _TOKEN.pack(token), 0)
            os.write(log, _WRITE.pack(token, now(), self._process))
            return True
        finally:
            fcntl.flock(guard, fcntl.LOCK_UN)

    def drop(self) -> None:
        """A forked child has nothing to do with it."""
        for fd in self._all:
            os.close(fd)
        self._all.clear()

    def _open(self, name: int) -> tuple[int, int]:
        files: dict[int, tuple[int, int]] = self._mine.__dict__.setdefault("files", {})
        if name not in files:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            guard = os.open(self._folder / f"{name}.token", flags, 0o600)
            self._all.append(guard)
            log = os.open(self._folder / f"{name}.writes", flags | os.O_APPEND, 0o600)
            self._all.append(log)
            files[name] = guard, log
        return files[name]


def writes(folder: Path) -> Iterator[Write]:
    """What was accepted, each name's in the order of acceptance."""
    for number, name in enumerate(NAMES):
        path = folder / f"{number}.writes"
        data = path.read_bytes() if path.exists() else b""
        data = data[: len(data) - len(data) % _WRITE.size]
        for token, time, process in _WRITE.iter_unpack(data):
            yield Write(name.text, token, time, process)
