"""A session on an event loop: aiomysql.

Contract: `sql/session.py`. Hazards: aiomysql has no time limits, leaves its transport open when it
is cancelled while connecting, and says goodbye only if somebody waits for it.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from typing import Any

import aiomysql  # pyright: ignore[reportMissingTypeStubs]
import pymysql

from holdfast.backends.mysql.text import rendered, translated
from holdfast.backends.sql.session import GRACE, Gone, Refused, Result, Session, Statement
from holdfast.ports.clock import now

__all__ = ["LoopSession"]


class LoopSession(Session):
    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._opened()

    @classmethod
    async def connect(cls, deadline: float, **arguments: Any) -> LoopSession:
        connection: Any = aiomysql.Connection(**arguments)
        try:
            async with asyncio.timeout(deadline - now()):
                await connection._connect()
        except TimeoutError:
            _abort(connection)
            raise Gone("it did not answer in time", sent=False) from None
        except (pymysql.Error, OSError, EOFError, AssertionError, AttributeError) as error:
            _abort(connection)
            raise translated(error) from error
        except BaseException:
            _abort(connection)
            raise
        if arguments.get("ssl") and not connection._secure:  # it goes on without, unasked
            _abort(connection)
            raise Refused("the server does not offer TLS, which the URL asks for")
        return cls(connection)

    async def _exchange(self, statements: Sequence[Statement], deadline: float) -> list[Result]:
        left = deadline - now()
        if left <= 0:
            raise Gone("no time was left to ask", sent=False)
        # A task, as aiomysql cannot go on with an exchange in which it was cancelled.
        talk = asyncio.create_task(self._talk(rendered(statements)))
        try:
            try:
                await asyncio.wait((talk,), timeout=left)
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
                await asyncio.wait((talk,), timeout=min(left, GRACE))
            if not talk.done():
                raise Gone("it did not answer in time", sent=True)
            return talk.result()
        except (pymysql.Error, OSError, AttributeError, IndexError) as error:
            raise translated(error) from error
        finally:
            if not talk.done():
                talk.cancel()

    async def _talk(self, text: bytes) -> list[Result]:
        connection = self._connection
        results: list[Result] = []
        await connection.query(text)
        while True:
            answer = connection._result
            rows, count = answer.rows, answer.affected_rows
            results.append(Result(list(rows or ()), count, answer.insert_id or 0))
            if not answer.has_next:
                return results
            await connection.next_result()

    def fileno(self) -> int:
        writer = self._connection._writer
        sock = writer.transport.get_extra_info("socket") if writer is not None else None
        return -1 if sock is None else int(sock.fileno())

    def looks_dead(self) -> bool:
        reader = self._connection._reader
        if reader is None or reader.at_eof() or reader.exception() is not None:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _close(self) -> None:
        _abort(self._connection)


def _abort(connection: Any) -> None:
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is not None:
        writer.transport.abort()
