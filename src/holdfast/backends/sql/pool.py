"""The sessions of one client: made when they are first needed, never more than `limit` at once.

Contract: `take` gives a session that nobody else uses, which must come back by `give`, whatever
happened to it; a session that is not usable any more is let go there. Raises `Unavailable` while
nothing has been sent, `Misconfigured` when the server refuses us for good. Who finds all in use
waits its turn, or is told by `Unavailable` why. Thread-safe on a thread port.

Law 4: nothing is lost to an interrupt (`backends/places.py`). A session that was taken and never
given back is one that its caller closed or dropped; `give` is in a `finally`.
"""

from __future__ import annotations

import weakref

from holdfast.backends.addresses import Reasons
from holdfast.backends.places import Places
from holdfast.backends.sql.dialect import Connect
from holdfast.backends.sql.session import Blocked, Full, Gone, Refused, Session, Trouble
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["Pool"]

MOST_IDLE = 32
"""So many connections are kept for later."""


class Pool(Places):
    def __init__(self, port: Port, connect: Connect, limit: int, where: str) -> None:
        super().__init__(port, limit)
        self._connect = connect
        self._where = where
        self._idle: list[Session] = []  # the one used last is used first: the others grow old
        self._used: weakref.WeakSet[Session] = weakref.WeakSet()
        self._reasons = Reasons()
        self._closed = False
        self._doubt = 0.0  # when a connection broke: the others of that time may have, too

    async def take(self, deadline: float) -> Session:
        place = await self.place(lambda: deadline)
        if place is None:
            raise Unavailable(
                f"all {self._limit} connections to {self._where} that this client may make "
                "are in use: raise max_connections, or hold fewer locks at once"
            )
        try:
            session = self._spare() or await self._fresh(deadline)
            session.place = place
            self._used.add(session)
            return session
        except BaseException:
            self.leave(place)
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
        self.leave(place)

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
        begun = self._port.now()
        try:
            session = await self._connect(deadline)
        except (Full, Blocked) as error:
            raise Unavailable(f"{self._where} takes no more connections: {error}") from None
        except Refused as error:
            raise Misconfigured(f"{self._where} refuses us: {error}") from None
        except (Gone, Trouble) as error:
            why = self._reasons.why(self._where, str(error), begun, deadline)
            raise Unavailable(f"{self._where} could not be reached: {why}") from None
        self._reasons.reached(self._where)
        if self._closed:
            session.close()
            raise Unavailable(f"the client of {self._where} was closed")
        return session
