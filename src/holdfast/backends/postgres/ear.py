"""Hearing what NOTIFY sends to a session, until it comes or somebody wakes us.

Contract: `sql/dialect.Hearing`. `wake` may come from any thread, at any time, also after `close`.
Hazard: what NOTIFY sent may have arrived with the answer to another statement; so what is there
already is looked at before anything is waited for.
"""

from __future__ import annotations

import asyncio
import select

import psycopg

from holdfast.backends.postgres.session import PostgresSession
from holdfast.backends.postgres.text import said
from holdfast.backends.quiet import Bell, milliseconds
from holdfast.backends.sql.session import Gone
from holdfast.core.port import Port
from holdfast.ports.clock import now

__all__ = ["LoopHearing", "ThreadHearing"]


class ThreadHearing:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._bell = Bell()
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._poll.register(session.fileno(), select.POLLIN)

    async def listen(self, until: float) -> list[str]:
        heard = _heard(self._session)
        while not heard:
            if now() >= until:
                break
            ready = self._poll.poll(milliseconds(until))
            if any(fd == self._bell.fileno() for fd, _ in ready):
                self._bell.hush()
                break
            if ready:
                _consume(self._session)
                heard = _heard(self._session)
        return heard

    def wake(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        self._bell.close()


class LoopHearing:
    def __init__(self, session: PostgresSession, port: Port) -> None:
        self._session = session
        self._port = port
        self._event = port.event()

    async def listen(self, until: float) -> list[str]:
        heard = _heard(self._session)
        if heard or now() >= until:
            return heard
        loop, fd = asyncio.get_running_loop(), self._session.fileno()
        loop.add_reader(fd, self._event.set)
        try:
            await self._event.wait(until)
        finally:
            loop.remove_reader(fd)
        self._event.clear()
        _consume(self._session)
        return _heard(self._session)

    def wake(self) -> None:
        self._event.set()

    def close(self) -> None:
        pass


def _consume(session: PostgresSession) -> None:
    try:
        session._pgconn.consume_input()
    except psycopg.Error as error:
        raise Gone(said(error), sent=True) from None


def _heard(session: PostgresSession) -> list[str]:
    return [payload for _, payload in session._heard()]
