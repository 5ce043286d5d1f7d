"""The memory backend's cells: small versioned values, and the counter behind versions and tokens.

Contract: every method is one atomic step. Versions only grow, also over deletion and expiry, so
that a version names one write for ever. Beyond a cell's value only its highest fence is kept.
Partner: `store.py`, which adds the lines of claims to the same mutex and counter.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.backends.common import conflict
from holdfast.types import Cell, CellConflict

__all__ = ["Cells"]


@dataclass(slots=True, eq=False)
class _StoredCell:
    cell: Cell | None = None
    expires: float = math.inf
    fence: int | None = None
    watchers: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def at(self, now: float) -> Cell | None:
        return self.cell if now < self.expires else None


class Cells:
    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall  # only the floor of tokens and versions: they outlive this store
        self.mutex = threading.RLock()
        self._cells: dict[str, _StoredCell] = {}
        self._expiring: list[tuple[float, str]] = []  # when cells are over, soonest first
        self._last = 0  # the highest token or version handed out

    @property
    def entered(self) -> bool:
        """Whether this very thread is inside: the garbage collector ran somebody's finaliser
        there, and what it asks for must wait until the line is in order."""
        return self.mutex._is_owned()  # type: ignore[attr-defined,no-any-return]

    def _token(self) -> int:
        """Grows, also over a store that was dropped and made again (law 7): one counter for all
        names, floored by the wall clock in microseconds."""
        self._last = max(self._last + 1, int(self._wall() * 1e6))
        return self._last

    def cell_read(self, name: str) -> Cell | None:
        with self.mutex:
            stored = self._cells.get(name)
            return None if stored is None else stored.at(self._clock())

    def cell_write(
        self,
        name: str,
        value: bytes | None,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
    ) -> Cell | CellConflict:
        with self.mutex:
            now = self._clock()
            self._forget_cells(now)
            stored = self._cells.get(name)
            current = None if stored is None else stored.at(now)
            highest = None if stored is None else stored.fence
            refused = conflict(current, highest, expect, fence)
            if refused is not None:
                return refused
            version = self._token()
            expires = math.inf if ttl is None else now + ttl
            if stored is None:
                stored = self._cells[name] = _StoredCell()
            stored.fence = highest if fence is None else fence  # no lower one got here
            stored.expires = expires
            stored.cell = None if value is None else Cell(value, version)
            if ttl is not None:
                heapq.heappush(self._expiring, (expires, name))
            self._drop_if_empty(name, stored)
            for call in list(stored.watchers):
                call()
            return Cell(value or b"", version)

    def cell_watch(self, name: str, call: Callable[[], None]) -> tuple[Cell | None, float]:
        """What is there, and when it expires by itself, which calls nobody; call at each change."""
        with self.mutex:
            stored = self._cells.setdefault(name, _StoredCell())
            if call not in stored.watchers:
                stored.watchers.append(call)
            return stored.at(self._clock()), stored.expires

    def cell_unwatch(self, name: str, call: Callable[[], None]) -> None:
        with self.mutex:
            stored = self._cells.get(name)
            if stored is not None and call in stored.watchers:
                stored.watchers.remove(call)
                self._drop_if_empty(name, stored)

    def _drop_if_empty(self, name: str, stored: _StoredCell) -> None:
        """Beyond its value only a fence has to be remembered."""
        if stored.cell is None and stored.fence is None and not stored.watchers:
            self._cells.pop(name, None)

    def _forget_cells(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            name = heapq.heappop(self._expiring)[1]
            stored = self._cells.get(name)
            if stored is not None and stored.at(now) is None:
                stored.cell = None
                self._drop_if_empty(name, stored)
