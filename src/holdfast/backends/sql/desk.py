"""Where a table strategy's statements go: which session, within which time, and what errors mean.

Contract: `ask` is one statement that commits itself; `transact` is a few inside a transaction. Both
try again, within the caller's deadline, when the database says that somebody was in the way
(deadlock, lock wait timeout, serialization). Law 2: what was sent and not answered is Unknown;
`Unavailable` is raised only if it was surely not applied. The tables are made at first use; tables
of another version are refused.

Hazard: a database goes on waiting for a row when its client has hung up. So its own limit of such a
wait is set from the caller's deadline, whole seconds at least, as MySQL has no less.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.pool import Pool
from holdfast.backends.sql.schema import VERSION, Tables, ddl
from holdfast.backends.sql.session import (
    Blocked,
    Conflict,
    Gone,
    Refused,
    Result,
    Session,
    Statement,
    Value,
)
from holdfast.core.backoff import pause
from holdfast.core.port import Port
from holdfast.errors import HoldfastError, Misconfigured, Unavailable
from holdfast.types import Unknown

__all__ = ["Desk", "Moved"]

T = TypeVar("T")

LONGEST_WAIT = 5
"""Seconds that a statement waits for a row at most, before it is asked again."""

ROLLBACK: Statement = ("ROLLBACK", ())


class Moved(Exception):
    """What was read has changed before it could be written: look again."""


class Desk:
    def __init__(self, driver: Driver, tables: Tables, port: Port, limit: int) -> None:
        self.dialect = driver.dialect
        self.where = driver.where
        self._tables = tables
        self._port = port
        self._connect = driver.connector(port.asynchronous)
        self._ordinary = Pool(port, self.connect, limit, driver.where)
        self._renewing = Pool(port, self.connect, 1, driver.where)
        self._ready = False

    async def connect(self, deadline: float) -> Session:
        """A session of this desk's kind, set up; whoever calls this closes it."""
        session = await self._connect(deadline)
        if session.pooled:  # what is set would last for others, and not for us
            return session
        try:
            await session.batch([(text, ()) for text in self.dialect.setup], deadline)
        except BaseException:
            session.close()
            raise
        return session

    async def close(self) -> None:
        self._ordinary.close()
        self._renewing.close()
        if self._port.asynchronous:  # sockets close in the loop's next rounds
            for _ in range(3):
                await self._port.sleep(0)

    # -- one statement ----------------------------------------------------------------------------

    async def ask(
        self, text: str, values: Sequence[Value], deadline: float, *, renewing: bool = False
    ) -> Result | Unknown:
        pool = self._renewing if renewing else self._ordinary
        session = await pool.take(deadline)
        try:
            # The way of nearly all: ready, nobody in the way, answered.
            if self._ready and self._patient(session, deadline):
                try:
                    return await session.run(text, values, deadline)
                except Refused as error:
                    await self._endure(session, error, 0, deadline)
                    failures = 1
            else:
                failures = 0
            return await self._insist(session, text, values, failures, deadline)
        except Gone as error:
            if error.sent:
                return Unknown(f"{self.where}: {error}")
            raise Unavailable(f"{self.where}: {error}") from None
        finally:
            pool.give(session)

    async def _insist(
        self, session: Session, text: str, values: Sequence[Value], failures: int, deadline: float
    ) -> Result:
        while True:
            try:
                await self._prepare(session, deadline)
                return await session.run(text, values, deadline)
            except Refused as error:
                await self._endure(session, error, failures, deadline)
                failures += 1

    # -- a transaction ----------------------------------------------------------------------------

    async def transact(self, work: Callable[[Session], Awaitable[T]], deadline: float) -> T:
        """Run `work` until it is not in anybody's way. It begins and commits itself, and is told
        apart only by `Gone`: what was not committed was not applied."""
        session = await self._ordinary.take(deadline)
        settled = False
        failures = 0
        try:
            while True:
                try:
                    await self._prepare(session, deadline)
                    answer = await work(session)
                    settled = True
                    return answer
                except Moved:
                    await session.run(*ROLLBACK, deadline)
                    await self._endure(session, None, failures, deadline)
                except Refused as error:
                    await session.run(*ROLLBACK, deadline)
                    await self._endure(session, error, failures, deadline)
                failures += 1
        except Gone as error:
            raise Unavailable(f"{self.where}: {error} (nothing was changed)") from None
        finally:
            if not settled:  # it may be in the middle of a transaction
                session.close()
            self._ordinary.give(session)

    # -- what goes wrong --------------------------------------------------------------------------

    async def _endure(
        self, session: Session, error: Refused | None, failures: int, deadline: float
    ) -> None:
        """Return if the same may be asked again, else raise."""
        port, where = self._port, self.where
        if error is not None and error.code in self.dialect.no_table:
            self._ready = False
            await self._make_tables(session, deadline)
            return
        if error is not None and not isinstance(error, Blocked | Conflict):
            raise self._explained(error) from None
        left = deadline - port.now()
        if left <= 0:
            raise Unavailable(
                f"{where}: others were in the way until time ran out ({error or 'busy'}); "
                "nothing was changed"
            ) from None
        if failures:
            await port.sleep(min(left, pause(failures, port.random(), left) / 4))

    def _explained(self, error: Refused) -> HoldfastError:
        if error.code in self.dialect.denied:
            return Misconfigured(
                f"{self.where}: {error}. The page of this backend lists what its user must be "
                "allowed to do"
            )
        return Unavailable(f"{self.where}: {error}")

    # -- before anything else ---------------------------------------------------------------------

    def _patient(self, session: Session, deadline: float) -> bool:
        """Whether the database's own limit of waiting for a row is right already."""
        wanted = min(LONGEST_WAIT, max(1, math.ceil(deadline - self._port.now())))
        return session.pooled or session.settings.get("patience") == wanted

    async def _prepare(self, session: Session, deadline: float) -> None:
        if not self._patient(session, deadline):
            wanted = min(LONGEST_WAIT, max(1, math.ceil(deadline - self._port.now())))
            await session.run(*self.dialect.patience(wanted), deadline)
            session.settings["patience"] = wanted
        if self._ready:
            return
        try:
            found = await session.run(f"SELECT version FROM {self._tables.meta}", (), deadline)
        except Refused as error:
            if error.code not in self.dialect.no_table:
                raise
            await self._make_tables(session, deadline)
            return
        if not found.rows:
            await self._make_tables(session, deadline)
            return
        version = max(row[0] for row in found.rows)
        if version != VERSION:
            newer = version > VERSION
            raise Misconfigured(
                f"{self.where}: the tables of {self._tables.plain!r} have version {version}, and "
                f"this holdfast works with {VERSION}. "
                + ("Update holdfast" if newer else "Migrate them as the changelog says")
                + ", or name other tables with ?table="
            )
        self._ready = True

    async def _make_tables(self, session: Session, deadline: float) -> None:
        """At first use. Many may do so at once."""
        try:
            for text in self.dialect.making(ddl(self.dialect, self._tables)):
                await session.run(text, (), deadline)
        except Refused as error:
            if error.code in self.dialect.denied:
                raise Misconfigured(
                    f"{self.where}: the tables of {self._tables.plain!r} are not there, and this "
                    f"user may not create them ({error}). `holdfast schema` with this URL prints "
                    "what to execute"
                ) from None
            raise
        self._ready = True
