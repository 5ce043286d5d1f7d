"""So many at once, and a line for who finds all places taken.

Contract: `place` gives one, or None when its time is over; `leave` gives it back and calls who
is first in line. Thread-safe on a thread port. Partners: `sql/pool.py` and `etcd/threads.py`,
whose places are connections; `Turns`, whose places are attempts.

Law 4: nothing is lost to an interrupt. A place counts while it exists: what was dropped between two
lines is not counted any more, and who is first in line looks by itself now and then.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import cast

from holdfast.core.port import Event, Port

__all__ = ["Places", "Turn", "Turns"]

IDLE = 1.0
"""Seconds after which who waits for a place looks by itself."""


class _Place:
    __slots__ = ("__weakref__",)


class Places:
    def __init__(self, port: Port, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()
        self._line: deque[Event] = deque()

    @property
    def taken(self) -> int:
        """How many are in use."""
        return len(self._places)

    def _reserve(self, event: Event | None) -> _Place | None:
        """A place, if there is one: for the first in line, or for anybody if there is no line."""
        with self._port.mutex():
            if len(self._places) >= self._limit or (self._line and self._line[0] is not event):
                return None
            place = _Place()
            self._places.add(place)
            return place

    async def place(self, limit: Callable[[], float]) -> object:
        """A place; None: the `limit` has passed, which may move while we wait."""
        return self._reserve(None) or await self._stand(limit)

    def leave(self, place: object) -> None:
        with self._port.mutex():
            self._places.discard(cast(_Place, place))
            self._call()

    def _call(self) -> None:
        if self._line and len(self._places) < self._limit:
            self._line[0].set()

    async def _stand(self, limit: Callable[[], float]) -> _Place | None:
        """In line."""
        event = self._port.event()
        try:
            try:
                with self._port.mutex():
                    self._line.append(event)
                while (place := self._reserve(event)) is None:
                    now = self._port.now()
                    deadline = limit()
                    if now >= deadline:
                        return None
                    event.clear()
                    if len(self._places) >= self._limit or self._line[0] is not event:
                        await event.wait(min(deadline, now + IDLE))
                return place
            finally:
                self._step_out(event)
        finally:
            self._step_out(event)  # Ctrl-C may have struck there

    def _step_out(self, event: Event) -> None:
        with self._port.mutex():
            if event in self._line:
                self._line.remove(event)
            self._call()


class Turns(Places):
    """A client's attempts, so many at once. A thousand that begin together would else spend their
    time waiting for one another's connections, and be over when it is their turn: each asks a
    little, in vain, and the store is taken for silent (`core/backend.py`, `InTurn`)."""

    def __init__(self, port: Port, limit: int) -> None:
        super().__init__(port, limit)
        self.heard = -math.inf  # when an attempt was last answered

    async def turn(self, patience: float, deadline: float) -> Turn:
        began = self._port.now()
        place = await self.place(lambda: min(deadline, max(began, self.heard) + patience))
        return Turn(self, place, max(began, self.heard))

    def over(self, place: object, answered: bool) -> None:
        if answered:
            self.heard = self._port.now()
        if place is not None:
            self.leave(place)


class Turn:
    __slots__ = ("_place", "_turns", "since")

    def __init__(self, turns: Turns, place: object, since: float) -> None:
        self._turns = turns
        self._place = place
        self.since = since

    def over(self, answered: bool) -> None:
        self._turns.over(self._place, answered)
