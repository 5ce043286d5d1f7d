"""A session on an event loop: aiomysql.

Contract: `sql/session.py`. Hazards: aiomysql has no time limits, leaves its transport open when it
is cancelled while connecting, or fails, and says goodbye only if somebody waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import aiomysql  # pyright: ignore[reportMissingTypeStubs]
import pymysql
from pymysql.constants.COMMAND import COM_QUERY

from holdfast.backends.mysql.text import check_flags, rendered, translated
from holdfast.backends.sql.session import Gone, Refused, Result, Session, Statement, readable
from holdfast.ports.clock import now

__all__ = ["LoopSession"]


class _Connection(aiomysql.Connection):  # type: ignore[misc]
    """aiomysql's, which closes itself when it is forgotten: in a forked child on its parent's loop.
    A session is closed by who has it. And when something fails, aiomysql says goodbye, which over
    TLS takes as long as the server likes, and forgets its transport: so we do not."""

    latest: Any = None
    _current: Any = None

    @property
    def _writer(self) -> Any:
        return self._current

    @_writer.setter
    def _writer(self, writer: Any) -> None:
        self._current = writer
        self.latest = writer or self.latest

    def __del__(self) -> None:
        pass


class LoopSession(Session):
    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._reading: asyncio.Future[Any] | None = None
        self._opened()

    @classmethod
    async def connect(cls, deadline: float, **arguments: Any) -> LoopSession:
        connection: Any = _Connection(**arguments)
        try:
            async with asyncio.timeout(deadline - now()):
                await connection._connect()
        except TimeoutError:
            _abort(connection)
            raise Gone("it did not answer in time", sent=False) from None
        except Exception as error:  # what is no MySQL at all may raise anything there
            _abort(connection)
            raise translated(error) from error
        except BaseException:
            _abort(connection)
            raise
        if arguments.get("ssl") and not connection._secure:  # it goes on without, unasked
            _abort(connection)
            raise Refused("the server does not offer TLS, which the URL asks for")
        return cls(connection)

    @classmethod
    async def adopt(cls, connection: Any, deadline: float) -> LoopSession:
        """One that somebody else has made."""
        session = cls(connection)
        try:
            check_flags(connection)
        except BaseException:
            session.close()
            raise
        return session

    async def _begin(self, statements: Sequence[Statement], deadline: float, early: bool) -> None:
        try:
            await self._connection._execute_command(COM_QUERY, rendered(statements))
        except (pymysql.Error, OSError, AttributeError) as error:
            raise translated(error) from error

    async def _next(self, deadline: float) -> Result | None:
        # A read that is cancelled by its time limit cannot be resumed, so it goes on beside us.
        reading = self._reading
        if reading is None:
            reading = asyncio.ensure_future(self._connection._read_query_result())
            self._reading = reading
        limit = None if deadline == math.inf else max(0.0, deadline - now())
        done, _ = await asyncio.wait([reading], timeout=limit)
        if self._reading != reading:  # closed by somebody else meanwhile
            raise Gone("the connection was closed", sent=True)
        if not done:
            return None
        self._reading = None
        try:
            reading.result()
        except (pymysql.Error, OSError, AttributeError, IndexError) as error:
            raise translated(error) from error
        answer = self._connection._result
        return Result(list(answer.rows or ()), answer.affected_rows, answer.insert_id or 0)

    def fileno(self) -> int:
        writer = self._connection._writer
        sock = writer.transport.get_extra_info("socket") if writer is not None else None
        return -1 if sock is None else int(sock.fileno())

    async def rest(self, until: float) -> None:
        if not self.usable or self._connection._reader is None:
            raise Gone("this connection is closed", sent=False)
        try:
            async with asyncio.timeout(max(0.0, until - now())):
                await self._connection._reader.read(1)  # nobody asked, so it is the end
        except TimeoutError:
            return
        except OSError:
            pass
        self.close()
        raise Gone("the server has closed the connection", sent=False)

    def looks_dead(self) -> bool:
        reader = self._connection._reader
        if reader is None or reader.at_eof() or reader.exception() is not None:
            return True
        fd = self.fileno()
        return fd < 0 or readable(fd)

    def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.add_done_callback(_ignored)
            reading.cancel()
        _abort(self._connection)


def _ignored(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        reading.exception()


def _abort(connection: Any) -> None:
    writer = connection._writer or getattr(connection, "latest", None)
    connection._writer = connection._reader = None
    if writer is not None:
        writer.transport.abort()
