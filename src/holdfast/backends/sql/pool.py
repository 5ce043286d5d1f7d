"""The sessions of one client: made when they are first needed, never more than `limit` at once.

Contract: `take` gives a session that nobody else uses, which must come back by `give`, whatever
happened to it; a session that is not usable any more is let go there. Raises `Unavailable` while
nothing has been sent, `Misconfigured` when the server refuses us for good. Who finds all in use
waits its turn, or is told by `Unavailable` why. Thread-safe on a thread port.

Law 4: nothing is lost to an interrupt. A session that was taken and never given back is one that
its caller closed or dropped; `give` is in a `finally`.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import cast

from holdfast.backends.sql.dialect import Connect
from holdfast.backends.sql.session import Blocked, Full, Gone, Refused, Session, Trouble
from holdfast.core.port import Event, Port
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["Pool"]

IDLE = 1.0
"""Seconds after which who waits for a connection looks by itself."""

MOST_IDLE = 32
"""So many connections are kept for later."""


class _Place:
    """One of the connections that may be in use. Counted while it exists: what an interrupt dropped
    between two lines is not counted any more."""

    __slots__ = ("__weakref__",)


class Pool:
    def __init__(self, port: Port, connect: Connect, limit: int, where: str) -> None:
        self._port = port
        self._connect = connect
        self._limit = limit
        self._where = where
        self._idle: list[Session] = []  # the one used last is used first: the others grow old
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()
        self._used: weakref.WeakSet[Session] = weakref.WeakSet()
        self._line: deque[Event] = deque()
        self._closed = False
        self._doubt = 0.0  # when a connection broke: the others of that time may have, too

    @property
    def taken(self) -> int:
        """How many are in use."""
        return len(self._places)

    async def take(self, deadline: float) -> Session:
        place = self._reserve(None) or await self._turn(deadline)
        try:
            session = self._spare() or await self._fresh(deadline)
            session.place = place
            self._used.add(session)
            return session
        except BaseException:
            self._leave(place)
            raise

    def give(self, session: Session) -> None:
        """Once for each `take`; a second time does nothing."""
        place, session.place = session.place, None
        if place is None:
            return
        self._used.discard(session)
        if session.usable and not self._closed and len(self._idle) < MOST_IDLE:
            self._idle.append(session)
        else:
            session.close()
            self._doubt = self._port.now()
        self._leave(place)

    def close(self) -> None:
        """Those in use are cut, and closed by whoever has them; on an event loop, by us: nobody may
        be left to do it."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        for session in list(self._used):
            session.cut()
            if self._port.asynchronous:
                session.close()

    # -- how many ---------------------------------------------------------------------------------

    def _reserve(self, event: Event | None) -> _Place | None:
        """A place, if there is one: for the first in line, or for anybody if there is no line."""
        with self._port.mutex():
            if len(self._places) >= self._limit or (self._line and self._line[0] is not event):
                return None
            place = _Place()
            self._places.add(place)
            return place

    def _leave(self, place: object) -> None:
        with self._port.mutex():
            self._places.discard(cast(_Place, place))
            self._call()

    def _call(self) -> None:
        if self._line and len(self._places) < self._limit:
            self._line[0].set()

    async def _turn(self, deadline: float) -> _Place:
        """Stand in line. The first one also looks by itself now and then: what was dropped by an
        interrupt calls nobody."""
        event = self._port.event()
        try:
            with self._port.mutex():
                self._line.append(event)
            while (place := self._reserve(event)) is None:
                now = self._port.now()
                if now >= deadline:
                    raise Unavailable(
                        f"all {self._limit} connections to {self._where} that this client may make "
                        "are in use: raise max_connections, or hold fewer locks at once"
                    )
                event.clear()
                if len(self._places) >= self._limit or self._line[0] is not event:
                    await event.wait(min(deadline, now + IDLE))
            return place
        finally:
            with self._port.mutex():
                if event in self._line:
                    self._line.remove(event)
                self._call()

    # -- which ------------------------------------------------------------------------------------

    def _spare(self) -> Session | None:
        moment = self._port.now()
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return None
            fresh = moment - session.used < session.lasts and session.used > self._doubt
            if session.usable and (fresh or not session.looks_dead()):
                return session
            session.close()

    async def _fresh(self, deadline: float) -> Session:
        try:
            session = await self._connect(deadline)
        except (Full, Blocked) as error:
            raise Unavailable(f"{self._where} takes no more connections: {error}") from None
        except Refused as error:
            raise Misconfigured(f"{self._where} refuses us: {error}") from None
        except (Gone, Trouble) as error:
            raise Unavailable(f"{self._where} could not be reached: {error}") from None
        if self._closed:
            session.close()
            raise Unavailable(f"the client of {self._where} was closed")
        return session
