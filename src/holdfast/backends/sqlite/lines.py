"""What the rules say to SQLite, and what they know of one line. Partner: `store.py`, the rules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.backends.common import admits
from holdfast.backends.local import Held
from holdfast.backends.sqlite import sound
from holdfast.types import Mode

__all__ = [
    "DEPEND",
    "FIRST",
    "FREE",
    "GIVE",
    "HOLDERS",
    "LAST",
    "RENEW",
    "TAKE",
    "Line",
    "Waiter",
    "depends_on",
    "joined",
]

FREE = """
SELECT epoch, reserved, EXISTS (SELECT 1 FROM holders WHERE name = ?)
OR EXISTS (SELECT 1 FROM waiters WHERE name = ?) FROM state
"""
TAKE = "INSERT INTO holders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
GIVE = """
DELETE FROM holders WHERE name = ? AND owner = ? AND expires > ?
AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?)
"""
RENEW = """
UPDATE holders SET expires = max(expires, ?), process = ?
WHERE name = ? AND owner = ? AND expires > ?
"""
HOLDERS = f"""
SELECT {sound.holder}, owner, process, mode, permits, expires, fence, info
FROM holders WHERE name = ?
"""
FIRST = f"""
SELECT {sound.waiter},
owner, process, mode, permits, most, ttl, info, place, expires, look_at, depends
FROM waiters WHERE name = ? ORDER BY place LIMIT 1
"""
DEPEND = "UPDATE waiters SET look_at = ?, depends = ? WHERE name = ? AND place = ?"
LAST = f"""
SELECT {sound.waiter}, place, process,
(SELECT count(*) FROM (SELECT 1 FROM waiters WHERE name = ? LIMIT ?))
FROM waiters WHERE name = ? ORDER BY place DESC LIMIT 1
"""


class Waiter(NamedTuple):
    """A claim as the line knows it: a row of FIRST, or one that is not in line."""

    owner: str
    process: int
    mode: str
    permits: int
    most: int
    ttl: float
    info: str
    place: int = 0
    expires: float = 0.0
    look_at: float = 0.0
    depends: str = ""


class Line:
    """Who holds a name, as far as the rules need it."""

    __slots__ = ("expires", "held", "info", "mode", "processes", "taken", "writer")

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.mode: Mode | None = None
        self.taken = 0
        self.processes: set[int] = set()
        self.expires = math.inf  # of the first to expire
        self.writer: int | None = None  # the token that shared holders carry
        self.info = ""

    def add(
        self, owner: str, process: int, mode: Mode, permits: int,
        expires: float, fence: int | None, info: str,
    ) -> None:  # fmt: skip
        self.held[owner] = Held(expires, fence)
        self.mode = mode
        self.taken += permits
        self.processes.add(process)
        self.expires = min(self.expires, expires)
        self.writer = fence
        self.info = self.info or info

    def admits(self, wish: Waiter) -> bool:
        return admits(self.mode, self.taken, Mode(wish.mode), wish.permits, wish.most)


def joined(processes: Iterable[int]) -> str:
    return ",".join(map(str, sorted(processes)))


def depends_on(depends: str, processes: Iterable[int]) -> bool:
    """Whether it will notice the end of each of these."""
    return {str(process) for process in processes} <= set(depends.split(","))
