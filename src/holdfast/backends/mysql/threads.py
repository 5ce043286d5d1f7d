"""A session on a blocking socket: PyMySQL, and after the login answers are read by ourselves.

Contract: `sql/session.py`; nothing here suspends. Hazard: PyMySQL's time limits are those of one
read; at the login they are what is left of the caller's deadline at each packet. Later nothing is
read before something has arrived, and an answer that stops in its middle is given up by the kernel:
Python's own limits would cost a system call for each packet. (With TLS they are used: OpenSSL would
try again and again.) What has arrived beyond one packet is kept, and TLS may keep some, too: both
are looked at before the socket is waited for. Partner: `answers.py`.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.constants.COMMAND import COM_QUERY

from holdfast.backends.mysql.answers import read
from holdfast.backends.mysql.text import check_flags, rendered, translated
from holdfast.backends.quiet import milliseconds
from holdfast.backends.sql.session import Gone, Result, Session, Statement, readable
from holdfast.ports.clock import now

__all__ = ["ThreadSession"]

COM_SET_OPTION, MULTI_STATEMENTS_ON = 0x1B, b"\0\0"

BROKEN = (OSError, AttributeError, IndexError, ValueError, TypeError)
"""Besides errors of its own, what PyMySQL raises when another thread has closed a connection, or
when an answer was given up in its middle."""

READ = 1 << 16
"""Bytes that are read at once."""

LARGEST = 0xFFFFFF
"""A packet of so many bytes goes on in the next one."""

LEAST = 0.001
"""Seconds: a limit of 0 would mean not to wait at all."""


class _Connection(Connection):
    """PyMySQL's, whose limits are a deadline until it is logged in."""

    deadline = 0.0
    logged_in = False
    limit: float | None = None  # for each read, later

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Said at the login already; all else we say is ASCII. Saves a trip."""

    @property
    def _left(self) -> float | None:
        return self.limit if self.logged_in else max(self.deadline - now(), LEAST)

    @_left.setter
    def _left(self, _: Any) -> None:
        pass  # the constructor's

    _read_timeout = _left
    _write_timeout = _left


class ThreadSession(Session):
    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._tls = isinstance(connection._sock, ssl.SSLSocket)
        self._own = isinstance(connection, _Connection)
        self._limited = 0  # seconds
        self._data, self._at = b"", 0  # what has arrived, and how much of it was read
        self._sequence = 0  # of the next packet
        self._poll = select.poll()
        self._poll.register(connection._sock.fileno(), select.POLLIN)
        self._opened()

    @classmethod
    async def connect(cls, deadline: float, **arguments: Any) -> ThreadSession:
        connection = _Connection(**arguments, defer_connect=True)
        connection.deadline = deadline
        connection.connect_timeout = connection._left
        try:
            connection.connect()
        except Exception as error:  # what is no MySQL at all may raise anything there
            raise translated(error) from error
        connection.logged_in = True
        return cls(connection)

    @classmethod
    async def adopt(cls, connection: Any, deadline: float) -> ThreadSession:
        """One that somebody else has made."""
        session = cls(connection)
        try:
            check_flags(connection)
            session._limit(deadline)
            connection._execute_command(COM_SET_OPTION, MULTI_STATEMENTS_ON)
            connection._read_packet()
        except (pymysql.Error, OSError, AttributeError, TypeError) as error:
            session.close()
            raise translated(error) from error
        except BaseException:
            session.close()
            raise
        return session

    async def _begin(self, statements: Sequence[Statement], deadline: float, early: bool) -> None:
        try:
            self._limit(deadline)
            self._connection._execute_command(COM_QUERY, rendered(statements))
            self._sequence = self._connection._next_seq_id
        except (pymysql.Error, OSError, AttributeError) as error:
            raise translated(error) from error

    async def _next(self, deadline: float) -> Result | None:
        try:
            # Only what has begun to arrive is read: a read that ran out of time cannot be resumed.
            return read(self._packet) if self._arrived(deadline) else None
        except (*BROKEN, pymysql.Error) as error:
            raise translated(error) from error

    def _limit(self, deadline: float) -> None:
        """In whole seconds, so that it hardly ever changes: an answer that has begun to arrive and
        then stops is given up a second late at most."""
        limit = max(1, min(math.ceil(deadline - now()), 3600))
        if limit == self._limited:
            return
        self._limited = limit
        connection = self._connection
        seconds = float(limit) if self._tls else None
        if self._own:
            connection.limit = seconds
        else:
            connection._read_timeout = connection._write_timeout = seconds
        if not self._tls:
            packed = struct.pack("ll", limit, 0)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection._sock.setsockopt(socket.SOL_SOCKET, option, packed)

    def _packet(self) -> bytes:
        *size, number = self._taken(4)
        length = size[0] | size[1] << 8 | size[2] << 16
        if number != self._sequence:  # 0: what a server says that ends, to nobody's question
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, "the server ends this connection")
        self._sequence = (number + 1) % 256
        data = self._taken(length)
        return data if length < LARGEST else data + self._packet()

    def _taken(self, size: int) -> bytes:
        missing = size - len(self._data) + self._at
        if missing > 0:
            parts = [self._data[self._at :]]
            while missing > 0:
                more = self._connection._sock.recv(READ)
                if not more:
                    raise pymysql.OperationalError(CR.CR_SERVER_LOST, "the connection was closed")
                parts.append(more)
                missing -= len(more)
            self._data, self._at = b"".join(parts), 0
        self._at += size
        return self._data[self._at - size : self._at]

    def _arrived(self, deadline: float) -> bool:
        if self._at < len(self._data):  # it came together with the one before
            return True
        if self._tls and self._connection._sock.pending():
            return True
        while not self._poll.poll(milliseconds(deadline)):
            if now() >= deadline:
                return False
        return True

    def fileno(self) -> int:
        sock = self._connection._sock
        return -1 if sock is None else int(sock.fileno())

    async def rest(self, until: float) -> None:
        if not self.usable:
            raise Gone("this connection is closed", sent=False)
        while now() < until:
            if self._poll.poll(milliseconds(until)):  # nobody asked, so it is the end
                self.close()
                raise Gone("the server has closed the connection", sent=False)

    def looks_dead(self) -> bool:
        fd = self.fileno()
        return fd < 0 or self._at < len(self._data) or readable(fd)

    def _close(self) -> None:
        self._connection._force_close()
