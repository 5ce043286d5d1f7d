"""What a worker writes down: fixed-size records, appended by one write each.

Contract: a record is in the file when `Log.write` returned, whatever then happens to the process; a
SIGKILL tears none in two. Times are CLOCK_BOOTTIME, which all processes of a host share and nobody
can set. Each record is written so that a death right after it misleads nobody: that a hold begins
after it began, that it ends before it is given back.
Partners: `actor.py` writes, `history.py` reads.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.types import Mode

__all__ = ["NAMES", "Kind", "Log", "Name", "Record", "count_begun", "now", "read"]

now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)

_FORMAT = struct.Struct("<cBBBHHIqdd")
_MODES = (Mode.EXCLUSIVE, Mode.SHARED, Mode.PERMITS)
_NUMBERS = {mode: number for number, mode in enumerate(_MODES)}
_NONE = -1


class Name(NamedTuple):
    """A lock's name, and how it is used. Few of them, so that there is always somebody waiting."""

    text: str
    kind: str  # lock, rw, semaphore
    limit: int = 1
    weight: int = 1


NAMES = (
    Name("lock-a", "lock", weight=4),
    Name("lock-b", "lock", weight=4),
    Name("lock-c", "lock", weight=3),
    Name("lock-d", "lock", weight=2),
    Name("rw", "rw", weight=3),
    Name("two", "semaphore", limit=2, weight=2),
    Name("three", "semaphore", limit=3, weight=2),
    Name("children", "lock", weight=0),  # of forked children alone: they must get it
)


class Kind:
    ASKED = b"W"
    BEGUN = b"B"
    EXTENDED = b"T"
    ENDED = b"E"
    GAVE_UP = b"G"
    REFUSED = b"R"  # a write, by the resource
    EXIT = b"X"  # the process ends itself now, whatever it holds


class Record(NamedTuple):
    """`deadline` is the local one of the lease; `flag`: it blocks (asked), lost (ended), nobody
    answered (gave up)."""

    kind: bytes
    time: float
    number: int = 0  # of the acquire, in its process
    name: int = 0
    mode: Mode = Mode.EXCLUSIVE
    permits: int = 1
    limit: int = 1
    flag: bool = False
    fence: int | None = None
    deadline: float = 0.0


class Log:
    """One process's records, by all its threads."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, record: Record) -> None:
        os.write(
            self._fd,
            _FORMAT.pack(
                record.kind,
                _NUMBERS[record.mode],
                record.permits,
                record.limit,
                record.name,
                record.flag,
                record.number,
                _NONE if record.fence is None else record.fence,
                record.time,
                record.deadline,
            ),
        )

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> Iterator[Record]:
    data = path.read_bytes()
    whole = len(data) - len(data) % _FORMAT.size
    for fields in _FORMAT.iter_unpack(data[:whole]):
        kind, mode, permits, limit, name, flag, number, fence, moment, deadline = fields
        yield Record(
            kind, moment, number, name, _MODES[mode], permits, limit, bool(flag),
            None if fence == _NONE else fence, deadline,
        )  # fmt: skip


def count_begun(path: Path, position: int) -> tuple[int, int]:
    """How many holds began in what was written after `position`, and where that ends."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    whole = len(data) - len(data) % _FORMAT.size
    return data[: whole : _FORMAT.size].count(Kind.BEGUN), position + whole
