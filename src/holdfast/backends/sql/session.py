"""A session: one connection to a database, used for one exchange at a time; and what can go wrong.

Contract: `run` sends one statement (`batch`: several, in one round trip) and returns what the
server answered, or raises `Trouble` of one of five kinds, which are all that a strategy knows about
errors. Parameters are always bound, never pasted (law 10): `%s` stands for each, `%%` for a
percent sign. The connection is in autocommit mode; `BEGIN`, `COMMIT` and `ROLLBACK` are statements.

An exchange may also be taken apart: `begin` sends, and each `next` waits for one more result. A
`next` that finds none by its deadline returns None and nothing is lost: the answer may still come.

Laws: 2 (`Gone` says whether anything was sent: if so, the outcome is unknown) and 4 (an exchange
that timed out or was interrupted, or was cancelled and had no answer within `GRACE`, closes its
session, which is never used again, and never connected again either: locks of the old connection
would be believed to exist). Law 8: in a forked child the inherited sockets become /dev/null
before anything else runs. Nothing the child does can reach the parent's server process, and the
server notices the parent's death though the child lives.

Partners: `pool.py`; `mysql/` and `postgres/`, which have a session for each port.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.backends.quiet import not_for_children, which
from holdfast.ports.clock import now

__all__ = [
    "GRACE", "Blocked", "Conflict", "Full", "Gone", "Refused", "Result", "Session", "Statement",
    "Trouble", "Value", "readable",
]  # fmt: skip

Value: TypeAlias = int | float | str | bytes | None
Statement: TypeAlias = tuple[str, Sequence[Value]]
"""A text with its parameters."""


GRACE = 0.1
"""Seconds that an exchange which asyncio cancels has to come to its end. What was sent is executed
in any case: better to know that it was than to meet it later; and the connection lives on."""


class Trouble(Exception):
    """What a database or the way to it did instead of answering."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code  # the server's: "1213", "40P01"


class Refused(Trouble):
    """The server said no: the statement was not applied, and the session is as it was."""


class Blocked(Refused):
    """A row or table was locked by somebody for longer than we were willing to wait."""


class Conflict(Refused):
    """A deadlock, or transactions that exclude one another: the same again may succeed."""


class Full(Refused):
    """The server has no connection left for us."""


class Gone(Trouble):
    """The session has ended. Whatever was `sent` may have been applied, or may be later."""

    def __init__(self, message: str, *, sent: bool, code: str = "") -> None:
        super().__init__(message, code)
        self.sent = sent


class Result(NamedTuple):
    rows: list[tuple[Any, ...]]
    changed: int  # rows that were changed, inserted, deleted or returned
    insert_id: int = 0  # MySQL's LAST_INSERT_ID(expression)


class Session(ABC):
    """One connection. `usable` is false during an exchange, and for ever after one that failed."""

    number = 0
    """What the server calls this connection: the argument of KILL or pg_terminate_backend."""
    mark = ""
    """What tells it from another one that may have the same number later."""
    clustered = False
    """Whether the server is a node of a Galera cluster."""
    database = ""
    """The current one, as MySQL calls it."""
    version = 0
    """The server's, as a number that can be compared: PostgreSQL's only."""
    pooled = False
    """Whether the server that answers is not the one we logged in to: a pooler stands between."""

    def __init__(self) -> None:
        self.usable = True
        self.awaited = 0  # results of the exchange that is under way
        self.spent = False  # somebody is about to end it: nobody else shall have it
        self._over = False
        self._socket = -1, (0, 0)  # its descriptor, and which it is
        self.used = now()
        self.place: object = None  # the pool's
        self.lasts = 1.0  # seconds for which an idle one is believed to be alive without a look
        self.settings: dict[str, Any] = {}  # what strategies have set, so as not to set it again

    async def run(self, text: str, parameters: Sequence[Value], deadline: float) -> Result:
        return (await self.batch(((text, parameters),), deadline))[0]

    async def batch(self, statements: Sequence[Statement], deadline: float) -> list[Result]:
        """Several in one round trip; nothing after the first that is refused is executed. Those
        before it count only if a transaction was begun (before, or by the batch) and is committed:
        MySQL keeps what precedes the error, PostgreSQL undoes it."""
        await self.begin(statements, deadline)
        results: list[Result] = []
        cancelled: asyncio.CancelledError | None = None
        while len(results) < len(statements):
            try:
                result = await self.next(deadline, lasting=cancelled is None)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    raise
                cancelled, deadline = error, min(deadline, now() + GRACE)
                continue
            except Trouble:
                if cancelled is not None:
                    raise cancelled from None
                raise
            if result is None:
                self.close()
                raise cancelled or Gone("it did not answer in time", sent=True)
            results.append(result)
        if cancelled is not None:
            raise cancelled
        return results

    async def begin(
        self, statements: Sequence[Statement], deadline: float, early: bool = False
    ) -> None:
        """Send them. With `early`, no result waits for those after it."""
        if not self.usable:
            raise Gone("this connection is closed", sent=False)
        if deadline <= now():
            raise Gone("no time was left to ask", sent=False)
        self.usable = False
        self.awaited = len(statements)
        try:
            await self._begin(statements, deadline, early)
        except BaseException:
            self.close()
            raise

    async def next(self, deadline: float, lasting: bool = False) -> Result | None:
        """One more result of the exchange that was begun; None: not by the deadline. A `lasting`
        exchange survives a cancellation: it is the connection that matters, and not the answer."""
        if not self.awaited:
            raise Gone("this connection is closed", sent=True)
        try:
            result = await self._next(deadline)
        except Refused:
            self._ended()
            raise
        except asyncio.CancelledError:
            if not lasting:
                self.close()
            raise
        except BaseException:
            self.close()
            raise
        if result is not None:
            self.awaited -= 1
            if not self.awaited:
                self._ended()
        return result

    def _ended(self) -> None:
        self.awaited = 0
        self.used = now()
        self.usable = self.fileno() >= 0

    @abstractmethod
    async def _begin(
        self, statements: Sequence[Statement], deadline: float, early: bool
    ) -> None: ...

    @abstractmethod
    async def _next(self, deadline: float) -> Result | None: ...

    @abstractmethod
    def fileno(self) -> int:
        """The socket's descriptor, -1 when it is closed."""

    @abstractmethod
    def looks_dead(self) -> bool:
        """Whether an idle connection has something to be read: nobody asked, so it is its end."""

    @abstractmethod
    async def rest(self, until: float) -> None:
        """Do nothing until then; raises `Gone` as soon as the connection's end is seen."""

    def close(self) -> None:
        """Never waits. May be called in the middle of an exchange, and more than once."""
        self.usable = False
        self.awaited = 0
        if not self._over:
            self._over = True
            self._close()

    def cut(self) -> None:
        """End it from another thread than the one that waits for its answer, which then notices."""
        number, its = self._socket
        try:
            with socket.socket(fileno=os.dup(number)) as same:
                if which(same.fileno()) == its:  # or the number is another's by now
                    same.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            pass

    @abstractmethod
    def _close(self) -> None: ...

    def _opened(self) -> None:
        """To be called once there is a connection."""
        number = self.fileno()
        self._socket = number, not_for_children(number)


def readable(fd: int) -> bool:
    """Whether something has arrived, or the other side has gone. From any thread."""
    poll = select.poll()  # one of its own: they are not to be shared between threads
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
