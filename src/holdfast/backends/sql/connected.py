"""`advisory` and `for-update`, as backends: what they promise, and what an operator may ask.

Contract: `core/backend.py`. No entry anywhere names a connection-bound lock, so there is no list of
them: what can be asked is who has one name, and that name's holders can be ended. Cells are not
theirs either. Partners: `bound.py`, `holding.py`.
"""

from __future__ import annotations

from typing import Any

from holdfast.backends.common import NoCells, public_id
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.holding import Holding
from holdfast.backends.sql.schema import Tables
from holdfast.backends.sql.session import Blocked, Conflict, Gone, Refused, Session
from holdfast.backends.sql.speech import RowSpeech, Speech, Verdict
from holdfast.backends.sql.sweep import Sweeper
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable, Unsupported
from holdfast.types import Capabilities, Claim, ClaimInfo, LockInfo, Mode

__all__ = ["Connected", "ForUpdate", "advisory", "for_update"]

FAILOVER = (
    "everything: locks end with their connections, and after a failover others may take them "
    "while the old holder has not noticed yet; tokens, where there are any, still increase"
)

BATCH = 100
"""So many old rows are forgotten in a round."""

ROUND = 1.0
"""Seconds for one, in which the sitter does nothing else."""


class Connected(NoCells, Holding):
    no_cells = "this strategy keeps no values: use strategy=row"

    def __init__(self, driver: Driver, speech: Speech, limit: int, table: str, named: bool) -> None:
        super().__init__(driver, speech, limit)
        Tables(driver.dialect, table)  # is its name one?
        self._named = named  # whether the server can say who has a lock

    @property
    def ddl(self) -> list[str]:
        """What must exist before, if clients may not make it."""
        return self._speech.schema

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            modes=self._speech.modes,
            fairness="best effort",
            fencing=self._speech.fenced,
            crash_release="connection",
            failover=FAILOVER,
            cells=False,
            inspection=False,
        )

    # -- who has it -------------------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        if not exact:
            raise Unsupported(
                "locks that live as long as a connection cannot be listed: the database knows them "
                "by a hash, or by a row's lock. Ask about one name (`lock.locked()`), or use "
                "strategy=row"
            )
        spare = await self._spare.take(deadline)
        try:
            holders, waiters = await self._who(spare, prefix, deadline)
        except (Gone, Refused) as error:
            raise Unavailable(f"{self._driver.where} did not say who holds it: {error}") from None
        finally:
            self._spare.give(spare)
        return [LockInfo(prefix, holders, waiters)] if holders or waiters else []

    async def _who(
        self, spare: Session, name: str, deadline: float
    ) -> tuple[tuple[ClaimInfo, ...], tuple[ClaimInfo, ...]]:
        if not self._named:
            held = await self._is_held(spare, name, deadline)
            return ((_shown(0, "", True, 0.0),) if held else ()), ()
        rows = (await spare.run(*self._speech.holders(name), deadline)).rows
        shown = [
            (granted, _shown(number, mark, exclusive, float(since or 0.0)))
            for number, mark, granted, exclusive, since in rows
        ]
        return (
            tuple(info for granted, info in shown if granted),
            tuple(info for granted, info in shown if not granted),
        )

    async def _is_held(self, spare: Session, name: str, deadline: float) -> bool:
        claim = Claim(name, "")
        try:
            results = await spare.batch(self._speech.attempt(claim), deadline)
        except (Blocked, Conflict):
            return True
        finally:
            if spare.usable:
                await spare.batch(self._speech.undo, deadline)
        return self._speech.taken(results) is Verdict.BUSY

    async def evict(self, name: str, deadline: float) -> int:
        if not self._named:
            raise Unsupported(
                "who has locked a row, the database does not tell: end the holder's connection by "
                "hand (KILL, pg_terminate_backend), or use strategy=row"
            )
        spare = await self._spare.take(deadline)
        try:
            rows = (await spare.run(*self._speech.holders(name), deadline)).rows
            found = [(number, mark) for number, mark, granted, *_ in rows if granted]
            for number, mark in found:
                other = _Other(number, mark)
                still = (await spare.run(*self._speech.kill(other), deadline)).rows
                finish = self._speech.finish(still[0][0]) if still else None
                if finish is not None:
                    await spare.run(*finish, deadline)
        except Gone as error:
            raise Unavailable(f"{self._driver.where} did not answer: {error}") from None
        except Refused as error:
            raise Misconfigured(f"{self._driver.where} refuses to end it: {error}") from None
        finally:
            self._spare.give(spare)
        return len(found)


def _shown(number: int, mark: str, exclusive: bool, since: float) -> ClaimInfo:
    where = mark.rpartition(" ")[2]
    host, _, pid = where.partition(":")
    return ClaimInfo(
        public_id(f"{number} {mark}"),
        Mode.EXCLUSIVE if exclusive else Mode.SHARED,
        since,
        None,
        info={"host": host, "pid": pid, "connection": str(number)},
    )


class _Other:
    """Somebody else's session, as far as the server tells of it."""

    def __init__(self, number: int, mark: str) -> None:
        self.number = number
        self.mark = mark


class ForUpdate(Connected):
    """Whose rows are forgotten when they are old and nobody has locked them: who wants the lock
    next makes the row again, and who waits for it just then is told that it is missing."""

    _speech: RowSpeech

    def open(self, port: Port, signals: Signals) -> None:
        super().open(port, signals)
        self._sweeper = Sweeper(port, self._sweep, ROUND)

    async def sweep(self, idle: float, deadline: float) -> int:
        return await self._sweeper.sweep(idle, deadline)

    async def _tidy(self) -> None:
        await self._sweeper.tidy()

    async def _sweep(self, after: bytes, idle: float, deadline: float) -> tuple[int, bytes | None]:
        spare = await self._spare.take(deadline)
        try:
            rows = (await spare.run(*self._speech.old(after, idle, BATCH), deadline)).rows
            names = [bytes(row[0]) for row in rows]
            count = sum([await self._forgotten(spare, name, deadline) for name in names])
        except Refused as error:
            if error.code in self._speech.absent:
                return 0, None
            raise Unavailable(f"{self._driver.where} refuses to sweep: {error}") from None
        except Gone as error:
            raise Unavailable(f"{self._driver.where} did not answer: {error}") from None
        finally:
            self._spare.give(spare)
        return count, names[-1] if len(names) == BATCH else None

    async def _forgotten(self, spare: Session, name: bytes, deadline: float) -> bool:
        try:
            claim = Claim(name.decode(), "")
            *_, deleted, _ = await spare.batch(self._speech.forget(claim), deadline)
            return bool(deleted.changed)
        except (Blocked, Conflict):  # somebody has it
            await spare.batch(self._speech.undo, deadline)
            return False


def advisory(driver: Driver, values: dict[str, Any]) -> Connected:
    limit, table = values["max_connections"], values["table"]
    return Connected(driver, driver.advisory(values), limit, table, named=True)


def for_update(driver: Driver, values: dict[str, Any]) -> ForUpdate:
    limit, table = values["max_connections"], values["table"]
    return ForUpdate(driver, driver.for_update(values), limit, table, named=False)
