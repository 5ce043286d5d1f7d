"""A session on a blocking socket: PyMySQL.

Contract: `sql/session.py`; nothing here suspends. Hazard: PyMySQL's time limits are those of one
read; here they are what is left of the caller's deadline at each packet.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection

from holdfast.backends.mysql.text import rendered, translated
from holdfast.backends.sql.session import Gone, Result, Session, Statement
from holdfast.ports.clock import now

__all__ = ["ThreadSession"]

LEAST = 0.001
"""Seconds: a limit of 0 would mean not to wait at all."""


class _Connection(Connection):  # type: ignore[type-arg]  # only its stubs are generic
    """PyMySQL's, whose limits are a deadline."""

    deadline = 0.0

    @property
    def _left(self) -> float:
        return max(self.deadline - now(), LEAST)

    @_left.setter
    def _left(self, _: Any) -> None:
        pass  # the constructor's

    _read_timeout = _left
    _write_timeout = _left


class ThreadSession(Session):
    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._own = isinstance(connection, _Connection)
        self._opened()

    @classmethod
    async def connect(cls, deadline: float, **arguments: Any) -> ThreadSession:
        connection = _Connection(**arguments, defer_connect=True)
        connection.deadline = deadline
        connection.connect_timeout = connection._left
        try:
            connection.connect()
        except (pymysql.Error, OSError, EOFError, AssertionError) as error:
            raise translated(error) from error
        return cls(connection)

    async def _exchange(self, statements: Sequence[Statement], deadline: float) -> list[Result]:
        connection = self._connection
        left = deadline - now()
        if left <= 0:
            raise Gone("no time was left to ask", sent=False)
        if self._own:
            connection.deadline = deadline
        else:
            connection._read_timeout = connection._write_timeout = left
        results: list[Result] = []
        try:
            connection.query(rendered(statements))
            while True:
                answer = connection._result
                rows, count = answer.rows, answer.affected_rows
                results.append(Result(list(rows or ()), count, answer.insert_id or 0))
                if not answer.has_next:
                    return results
                connection.next_result()
        except (pymysql.Error, OSError, AttributeError, IndexError) as error:
            raise translated(error) from error

    def fileno(self) -> int:
        sock = self._connection._sock
        return -1 if sock is None else int(sock.fileno())

    def looks_dead(self) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _close(self) -> None:
        self._connection._force_close()
