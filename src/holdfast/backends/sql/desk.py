"""Where a table strategy's statements go: which session, within which time, and what errors mean.

Contract: `ask` is one statement that commits itself; `transact` is a few inside a transaction. Both
try again, within the caller's deadline, when the database says that somebody was in the way
(deadlock, lock wait timeout, serialization). Law 2: what was sent and not answered is Unknown;
`Unavailable` is raised only if it was surely not applied. The tables are made at first use; tables
of another version are refused.

Hazard: a database goes on waiting for a row when its client has hung up. So its own limit of such a
wait is set from the caller's deadline, whole seconds at least, as MySQL has no less; and only ever
lowered, as who waits for less time is asked again, and setting it anew is a statement.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

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

LONGEST_WAIT = 2
"""Seconds that a statement waits for a row at most, before it is asked again."""

NOTHING: tuple[Statement, ...] = ()

BREAKS = 2
"""So many connections may break under one transaction before we say so."""

ROLLBACK: Statement = ("ROLLBACK", ())


class Moved(Exception):
    """What was read has changed before it could be written: look again."""


class Desk:
    def __init__(self, driver: Driver, tables: Tables, port: Port, limit: int) -> None:
        self.dialect = driver.dialect
        self.where = driver.where
        self._tables = tables
        self._port = port
        self.connect = driver.connector(port.asynchronous)
        self._ordinary = Pool(port, self.connect, limit, driver.where)
        self._renewing = Pool(port, self.connect, 1, driver.where)
        self._ready = False

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
        statements = ((text, values),)
        answer = await self.ask_all(statements, deadline, renewing=renewing)
        return answer if isinstance(answer, Unknown) else answer[0]

    async def ask_all(
        self, statements: Sequence[Statement], deadline: float, *, renewing: bool = False
    ) -> list[Result] | Unknown:
        """A few in one round trip; the last decides whether the others happened."""
        pool = self._renewing if renewing else self._ordinary
        session = await pool.take(deadline)
        try:
            failures = 0
            while True:
                try:
                    if not self._ready:
                        await self._prepare(session, deadline)
                    first = self._settings(session, deadline)
                    if not first:  # the way of nearly all
                        return await session.batch(statements, deadline)
                    results = await session.batch((*first, *statements), deadline)
                    session.settings["patience"] = session.settings["wanted"]
                    return results[len(first) :]
                except Refused as error:
                    await self._endure(session, error, failures, deadline)
                    failures += 1
        except Gone as error:
            if error.sent:
                return Unknown(f"{self.where}: {error}")
            raise Unavailable(f"{self.where}: {error}") from None
        finally:
            pool.give(session)

    async def ask_again(
        self, text: str, values: Sequence[Value], deadline: float, *, renewing: bool = False
    ) -> Result | Unknown:
        """For what does no harm when it is done twice: a broken connection is no reason not to
        ask on another one. (Who did not answer in time is asked no more.)"""
        for _ in range(BREAKS):
            answer = await self.ask(text, values, deadline, renewing=renewing)
            if not isinstance(answer, Unknown) or self._port.now() >= deadline:
                return answer
        return await self.ask(text, values, deadline, renewing=renewing)

    async def read(
        self, text: str, values: Sequence[Value], deadline: float
    ) -> list[tuple[Any, ...]]:
        answer = await self.ask_again(text, values, deadline)
        if isinstance(answer, Unknown):
            raise Unavailable(f"the database did not answer: {answer.reason}")
        return answer.rows

    # -- a transaction ----------------------------------------------------------------------------

    async def transact(self, work: Callable[[Session], Awaitable[T]], deadline: float) -> T:
        """Run `work` until it is not in anybody's way. It begins and commits itself. Raises
        nothing for a commit without an answer: so when the connection breaks, nothing was changed,
        and the same can be done on another one."""
        broken = 0
        while True:
            session = await self._ordinary.take(deadline)
            settled = False
            try:
                answer = await self._work(session, work, deadline)
                settled = True
                return answer
            except Gone as error:
                broken += 1
                left = deadline - self._port.now()
                if broken > BREAKS or left <= 0:
                    raise Unavailable(f"{self.where}: {error} (nothing was changed)") from None
            finally:
                if not settled:  # it may be in the middle of a transaction
                    session.close()
                self._ordinary.give(session)

    def opening(self, session: Session) -> list[Statement]:
        """What begins a transaction."""
        said = self.dialect.setup_pooled if session.pooled else ()
        return [(self.dialect.begin, ()), *((text, ()) for text in said)]

    async def _work(
        self, session: Session, work: Callable[[Session], Awaitable[T]], deadline: float
    ) -> T:
        failures = 0
        while True:
            try:
                if not self._ready or self._settings(session, deadline):
                    await self._prepare(session, deadline)
                return await work(session)
            except Moved:
                await session.run(*ROLLBACK, deadline)
                await self._endure(session, None, failures, deadline)
            except Refused as error:
                await session.run(*ROLLBACK, deadline)
                await self._endure(session, error, failures, deadline)
            failures += 1

    # -- what goes wrong --------------------------------------------------------------------------

    async def _endure(
        self, session: Session, error: Refused | None, failures: int, deadline: float
    ) -> None:
        """Return if the same may be asked again, else raise."""
        port, where = self._port, self.where
        if error is not None and error.code in self.dialect.no_table:
            self._ready = False
            await self._make_tables(session, deadline)
            return  # and look at their version
        if error is not None and not isinstance(error, Blocked | Conflict):
            raise self._explained(error) from None
        left = deadline - port.now()
        if left <= 0:
            raise Unavailable(
                f"{where}: others were in the way until time ran out ({error or 'busy'}); "
                "nothing was changed"
            ) from None
        if failures:
            soon = pause(failures, port.random(), left, first=0.005, longest=0.25)
            await port.sleep(min(left, soon))

    def _explained(self, error: Refused) -> HoldfastError:
        if error.code in self.dialect.denied:
            return Misconfigured(
                f"{self.where}: {error}. The page of this backend lists what its user must be "
                "allowed to do"
            )
        if error.code in self.dialect.altered:
            return Misconfigured(
                f"{self.where}: {error}. The tables of {self._tables.plain!r} are not as holdfast "
                "makes them: put them right (`holdfast schema` prints how they are made), or name "
                "others with ?table="
            )
        return Unavailable(f"{self.where}: {error}")

    # -- before anything else ---------------------------------------------------------------------

    def _settings(self, session: Session, deadline: float) -> Sequence[Statement]:
        """What must be said before anything else on this session, in the same round trip."""
        if session.pooled:  # it would last for others, and not for us
            return NOTHING
        left = deadline - self._port.now()
        wanted = LONGEST_WAIT if left > LONGEST_WAIT - 1 else max(1, math.ceil(left))
        known = session.settings.get("patience")
        if known is not None and known <= wanted:
            return NOTHING
        session.settings["wanted"] = wanted
        setup = self.dialect.setup if known is None else ()
        return [*((text, ()) for text in setup), self.dialect.patience(wanted)]

    async def _prepare(self, session: Session, deadline: float) -> None:
        """Those settings; and whether the tables are ours, before anything is written to them."""
        first = [*self._settings(session, deadline)]
        ready = self._ready  # another thread may find meanwhile that they are gone
        if not ready:
            first.append((f"SELECT version FROM {self._tables.meta}", ()))
        results = await session.batch(first, deadline)
        if "wanted" in session.settings:
            session.settings["patience"] = session.settings["wanted"]
        if ready:
            return
        if not results[-1].rows:  # who made the tables was interrupted, or is not ready yet
            await self._make_tables(session, deadline)
            self._ready = True
            return
        version = max(row[0] for row in results[-1].rows)
        if version != VERSION:
            raise Misconfigured(
                f"{self.where}: the tables of {self._tables.plain!r} have version {version}, and "
                f"this holdfast works with {VERSION}. "
                + ("Update holdfast" if version > VERSION else "Migrate them")
                + ", or name other tables with ?table="
            )
        self._ready = True

    async def _make_tables(self, session: Session, deadline: float) -> None:
        """At first use. Many may do so at once: who is in another's way tries again."""
        texts = self.dialect.making(ddl(self.dialect, self._tables))
        made = False
        try:
            await session.batch([(text, ()) for text in texts], deadline)
            made = True
        except Refused as error:
            if error.code in self.dialect.denied:
                raise Misconfigured(
                    f"{self.where}: the tables of {self._tables.plain!r} are not there, and this "
                    f"user may not create them ({error}). `holdfast schema` with this URL prints "
                    "what to execute"
                ) from None
            raise Gone(f"the tables could not be made: {error}", sent=False) from None
        finally:
            if not made:  # it may be in the middle of a transaction
                session.close()
