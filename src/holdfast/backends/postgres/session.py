"""A session of PostgreSQL: libpq, as psycopg offers it, for both ports.

Contract: `sql/session.py`. libpq never waits here: it says what it waits for, and `_ready` waits
for that, in poll() on a thread port and by the event loop on asyncio's. psycopg's own connections
cannot bound an exchange by a deadline, and when they are interrupted they ask the server to cancel
and wait for that; a session of ours is closed.

Several statements travel in pipeline mode: all of a batch, and the preparation of what is new, are
one round trip. One that is prepared already needs none of that. What is sent through a pooler is
not prepared: it may meet another server next time.
"""

from __future__ import annotations

import asyncio
import functools
import math
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import pq

from holdfast.backends.postgres.text import refused_login, said, translated
from holdfast.backends.quiet import milliseconds
from holdfast.backends.sql.session import (
    Gone,
    Result,
    Session,
    Statement,
    Trouble,
    Value,
    readable,
)
from holdfast.ports.clock import now

__all__ = ["PostgresSession"]

READ, WRITE = select.POLLIN, select.POLLOUT

_Part: TypeAlias = tuple[str, bool]
"""A statement, or its preparation."""

UNESCAPED = pq.Escaping().unescape_bytea

DECODERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda data: data == b"t",
    17: lambda data: bytes(UNESCAPED(data)),  # bytea, whatever the role's bytea_output is
    20: int,
    21: int,
    23: int,
    26: int,
    700: float,
    701: float,
    1700: float,
    2278: lambda data: None,  # void
}
"""By type; everything else is text."""


class PostgresSession(Session):
    maker: Any = None
    """The psycopg connection that it belongs to, if somebody else has made it."""

    def __init__(self, pgconn: Any, asynchronous: bool) -> None:
        super().__init__()
        self._pgconn = pgconn
        self._asynchronous = asynchronous
        self.waiter: asyncio.Future[int] | None = None  # asyncio's, while it waits
        self._prepare = False
        self._prepared: dict[str, bytes] = {}
        self._names = 0
        self._decoders: dict[str, list[Callable[[bytes], Any]]] = {}
        self._expected: deque[_Part] = deque()
        self._alone = False  # one statement, and no pipeline
        self._trouble: Trouble | None = None
        self._last: Result | None = None
        self._fd = int(pgconn.socket)
        self._poll = select.poll()
        self._poll.register(self._fd, READ)
        self.version = int(pgconn.server_version)
        pgconn.nonblocking = 1
        self._opened()

    @classmethod
    async def connect(cls, conninfo: bytes, asynchronous: bool, deadline: float) -> PostgresSession:
        pgconn: Any = pq.PGconn.connect_start(conninfo)
        try:
            while True:
                if pgconn.status == pq.ConnStatus.BAD:
                    raise refused_login(pgconn.get_error_message("utf-8"))
                state = pgconn.connect_poll()
                if state == pq.PollingStatus.OK:
                    break
                if state == pq.PollingStatus.FAILED:
                    raise refused_login(pgconn.get_error_message("utf-8"))
                # The socket may be another one each time: libpq tries several addresses.
                wanted = READ if state == pq.PollingStatus.READING else WRITE
                if not await _ready(pgconn.socket, wanted, deadline, asynchronous):
                    raise Gone("it did not answer in time", sent=False)
            return cls(pgconn, asynchronous)
        except psycopg.Error as error:
            pgconn.finish()
            raise Gone(said(error), sent=False) from None
        except BaseException:
            pgconn.finish()
            raise

    @property
    def told(self) -> int:
        """The server process, as it called itself at the login."""
        return int(self._pgconn.backend_pid)

    @property
    def in_transaction(self) -> bool:
        return bool(self._pgconn.transaction_status != pq.TransactionStatus.IDLE)

    def prepare(self) -> None:
        """From here on statements are prepared: it is known that the same server executes them."""
        self._prepare = True

    async def _begin(self, statements: Sequence[Statement], deadline: float, early: bool) -> None:
        pgconn = self._pgconn
        self._trouble = None
        self._last = None
        known = statements[0][0] in self._prepared or not self._prepare
        self._alone = known and len(statements) == 1 and not early
        try:
            if not self._alone:
                pgconn.enter_pipeline_mode()
            self._expected = deque[_Part]()
            for text, values in statements:
                self._expected.extend(self._send(text, values))
                if early:
                    pgconn.send_flush_request()
            if not self._alone:
                pgconn.pipeline_sync()
            while pgconn.flush():
                ready = await self._wait(READ | WRITE, deadline)
                if not ready:
                    raise Gone("it did not take the request in time", sent=True)
                if ready & READ:
                    pgconn.consume_input()
        except psycopg.Error as error:
            raise Gone(said(error), sent=True) from None

    def _send(self, text: str, values: Sequence[Value]) -> list[_Part]:
        """Returns what will be answered."""
        pgconn = self._pgconn
        encoded = [_encoded(value) for value in values]
        formats = [isinstance(value, bytes) for value in values]
        if not self._prepare:
            pgconn.send_query_params(_numbered(text), encoded, None, formats)
            return [(text, False)]
        parts = [(text, False)]
        name = self._prepared.get(text)
        if name is None:
            self._names += 1
            name = self._prepared[text] = b"holdfast%d" % self._names
            pgconn.send_prepare(name, _numbered(text))
            parts.insert(0, (text, True))
        pgconn.send_query_prepared(name, encoded, formats)
        return parts

    async def _next(self, deadline: float) -> Result | None:
        """The next result. The last one, or an error, comes when the pipeline is empty."""
        pgconn = self._pgconn
        try:
            while True:
                while pgconn.is_busy():
                    if not await self._wait(READ, deadline):
                        return None
                    pgconn.consume_input()
                answer = pgconn.get_result()
                if answer is None:  # the end of one part
                    if pgconn.status != pq.ConnStatus.OK:
                        raise self._broken(pgconn.get_error_message("utf-8"))
                    if self._alone:
                        return self._ended_with()
                    continue
                status = answer.status
                if status == pq.ExecStatus.PIPELINE_SYNC:
                    pgconn.exit_pipeline_mode()
                    return self._ended_with()
                if not self._expected:  # all was answered, and then the connection ended
                    raise self._broken(answer.get_error_message("utf-8"))
                text, preparing = self._expected.popleft()
                if status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED):
                    self._trouble = self._trouble or translated(answer)
                    if isinstance(self._trouble, Gone):
                        raise self._trouble
                    if preparing:
                        del self._prepared[text]
                elif not preparing:
                    self._last = self._result(text, answer)
                    if self._expected:
                        return self._last
        except psycopg.Error as error:
            raise self._broken(str(error)) from None

    def _broken(self, text: str) -> Gone:
        """The connection has ended; whatever was refused before is no news any more."""
        trouble = self._trouble
        code = "" if trouble is None else trouble.code
        return Gone(str(trouble or said(text)), sent=True, code=code)

    def _ended_with(self) -> Result | None:
        if self._trouble is not None:
            raise self._trouble
        return self._last

    def _result(self, text: str, answer: Any) -> Result:
        decoders = self._decoders.get(text)
        if decoders is None:
            decoders = [DECODERS.get(answer.ftype(n), _text) for n in range(answer.nfields)]
            self._decoders[text] = decoders
        rows: list[tuple[Any, ...]] = []
        for row in range(answer.ntuples):
            values = (answer.get_value(row, column) for column in range(len(decoders)))
            rows.append(
                tuple(
                    None if value is None else decode(value)
                    for decode, value in zip(decoders, values, strict=True)
                )
            )
        return Result(rows, answer.command_tuples or 0)

    async def _wait(self, wanted: int, deadline: float) -> int:
        """What it is ready for; 0 when the deadline has passed."""
        if wanted == READ and not self._asynchronous:
            while not self._poll.poll(milliseconds(deadline)):
                if now() >= deadline:
                    return 0
            return READ
        return await _ready(self._fd, wanted, deadline, self._asynchronous, self)

    async def notifications(self, deadline: float) -> list[tuple[str, str]]:
        """What NOTIFY has sent to this session, as (channel, payload): waits for the first."""
        if not self.usable:
            raise Gone("this connection is closed", sent=False)
        self.usable = False
        try:
            pgconn = self._pgconn
            while not (heard := self._heard()) and await self._wait(READ, deadline):
                pgconn.consume_input()
        except psycopg.Error as error:
            self.close()
            raise Gone(said(error), sent=True) from None
        except BaseException:
            self.close()
            raise
        self.usable = True
        return heard

    async def rest(self, until: float) -> None:
        while now() < until:
            await self.notifications(until)  # which nobody sends to it

    def _heard(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while (notice := self._pgconn.notifies()) is not None:
            found.append((notice.relname.decode(), notice.extra.decode()))
        return found

    def __del__(self) -> None:
        # Before the connection that it may belong to complains of being left open.
        if not getattr(self, "_over", True):
            self.close()

    def fileno(self) -> int:
        return self._fd

    def looks_dead(self) -> bool:
        return self._fd < 0 or readable(self._fd)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.get_loop().is_closed():
            loop = waiter.get_loop()  # before the number can be another socket's
            loop.remove_reader(fd)
            loop.remove_writer(fd)
            if not waiter.done():
                waiter.set_exception(Gone("the connection was closed", sent=True))
        self._pgconn.finish()


def _text(data: bytes) -> str:
    return data.decode()


def _encoded(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode() if not isinstance(value, float) else repr(value).encode()


@functools.lru_cache(maxsize=512)
def _numbered(text: str) -> bytes:
    """`%s` becomes `$1`, `$2` and so on."""
    pieces = text.split("%s")
    numbered = "".join(f"{piece}${n}" for n, piece in enumerate(pieces[:-1], 1)) + pieces[-1]
    return numbered.replace("%%", "%").encode()


async def _ready(
    fd: int,
    wanted: int,
    deadline: float,
    asynchronous: bool,
    session: PostgresSession | None = None,
) -> int:
    """Wait until the socket can be read or written, as wanted; which of them, 0 if not in time."""
    if not asynchronous:
        poll = select.poll()
        poll.register(fd, wanted)
        while not (found := poll.poll(milliseconds(deadline))):
            if now() >= deadline:
                return 0
        return found[0][1]
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[int] = loop.create_future()
    if session is not None:
        session.waiter = ready
    if wanted & READ:
        loop.add_reader(fd, _settle, ready, READ)
    if wanted & WRITE:
        loop.add_writer(fd, _settle, ready, WRITE)
    limit = None if deadline == math.inf else max(0.0, deadline - now())
    try:
        async with asyncio.timeout(limit):
            return await ready
    except TimeoutError:
        return 0
    finally:
        if session is None or session.waiter is ready:  # else it was closed, and has done this
            if session is not None:
                session.waiter = None
            if wanted & READ:
                loop.remove_reader(fd)
            if wanted & WRITE:
                loop.remove_writer(fd)


def _settle(ready: asyncio.Future[int], what: int) -> None:
    if not ready.done():
        ready.set_result(what)
