"""What the strategies that keep locks in rows have in common: connections, renewal, looking, cells.

Contract: `core/backend.py`, but for claims. Opening contacts nobody. Partners: `row.py` and
`optimistic.py`, which take and give.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.backends.common import Written
from holdfast.backends.places import Turn, Turns
from holdfast.backends.sql.attendant import Attendant, Ear
from holdfast.backends.sql.cells import Cells
from holdfast.backends.sql.desk import Desk
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.ear import SessionEar
from holdfast.backends.sql.leftovers import Leftovers
from holdfast.backends.sql.overview import Overview
from holdfast.backends.sql.room import Room
from holdfast.backends.sql.rules import Entry, microseconds
from holdfast.backends.sql.schema import Tables, ddl
from holdfast.backends.sql.step import Steps
from holdfast.backends.sql.sweep import Sweeper
from holdfast.backends.sql.words import Words
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Misconfigured
from holdfast.types import Claim, Grant, Lost, Mode, Released, Renewed, Unknown

__all__ = ["EXCLUSIVE", "FAILOVER", "NOT_OURS", "RELEASED", "TableBackend"]

EXCLUSIVE = Mode.EXCLUSIVE
NOT_OURS = "the database has it no longer: it expired, or somebody evicted it"
RELEASED = Released()
FAILOVER = (
    "what the database loses: nothing on a restart, and nothing on the promotion of a synchronous "
    "replica; an asynchronous one may not know of the last grants, and two may then hold at once "
    "until the old lease ends. Tokens still increase if its clock is later than at any grant before"
)

BEATS = 3
"""After so many heartbeats that did not come, a waiter is dead."""

LONGEST = 60.0
"""Seconds of a heartbeat, and of a window."""

ROUND = 5.0
"""Seconds for a round of the sweeper."""

FAREWELL = 1.0
"""Seconds that closing waits for what runs beside."""


class TableBackend(Overview, Cells):
    def __init__(self, driver: Driver, values: Mapping[str, Any]) -> None:
        self._driver = driver
        self._tables = Tables(driver.dialect, values["table"])
        self._words = Words(driver.dialect, self._tables)
        self._limit: int = values["max_connections"]
        self._window: float = values["window"]
        self._heartbeat: float = values["heartbeat"]
        self._poll: float = values["poll"]
        self._patience = BEATS * self._heartbeat
        if not 0 < self._heartbeat <= LONGEST:
            raise Misconfigured(
                f"heartbeat={self._heartbeat:g}: more than 0, and at most {LONGEST:g} s"
            )
        if not 0 < self._window <= LONGEST:
            raise Misconfigured(f"window={self._window:g}: more than 0, and at most {LONGEST:g} s")
        if not 0 < self._poll <= self._window / 2:
            raise Misconfigured(
                f"poll={self._poll:g}: more than 0, and at most half of the window of "
                f"{self._window:g} s"
            )
        self._client = f"holdfast_{secrets.token_hex(8)}"
        self._info = Written(str.encode)

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port
        self._desk = Desk(self._driver, self._tables, port, self._limit)
        self._turns = Turns(port, self._limit)
        self._room = Room(
            port, self._heartbeat, lambda room: Attendant(room, self._poll, self._open_ear)
        )
        window = microseconds(self._window)
        self._steps = Steps(self._desk, self._words, window, self._handed_over)
        self._sweeper = Sweeper(port, Leftovers(self._desk, self._words, self._steps).round, ROUND)

    async def turn(self, patience: float, deadline: float) -> Turn:
        return await self._turns.turn(patience, deadline)

    async def close(self) -> None:
        self._room.close()
        limit = self._port.now() + FAREWELL
        await self._room.emptied(limit)
        await self._sweeper.stop(limit)
        await self._desk.close()

    async def _open_ear(self, deadline: float) -> Ear:
        dialect = self._driver.dialect
        session = await self._desk.connect(deadline)
        calls = bool(dialect.notify) and not session.pooled
        cells = bool(self._room.watched)  # once: somebody may begin to watch while we ask
        try:
            if calls:
                channels = [self._client]
                if cells:
                    channels.append(self._words.cells_channel)
                await session.batch([(dialect.listen(name), ()) for name in channels], deadline)
            hearing = self._driver.hearing(session, self._port)
        except BaseException:
            session.close()
            raise
        return SessionEar(session, dialect, self._words, hearing, calls, cells)

    def _handed_over(self, name: bytes, granted: Sequence[Entry], done: bool) -> None:
        """By a step of ours, or so it seems: who of ours was let in need not ask for it, and who
        waits behind somebody else's asks soon."""
        client = self._client.encode()
        ours = [entry for entry in granted if entry.client == client]
        for entry in ours:
            self._room.heard(entry.call if done else str(entry.place))
        if len(ours) < len(granted):
            self._room.passed_on(name.decode())

    # -- operators --------------------------------------------------------------------------------

    @property
    def ddl(self) -> list[str]:
        """What makes the tables."""
        return ddl(self._driver.dialect, self._tables)

    async def sweep(self, idle: float, deadline: float) -> int:
        """Forget all that is over, and names that nobody has used for so many seconds."""
        return await self._sweeper.sweep(idle, deadline)

    # -- renewal ----------------------------------------------------------------------------------

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        """One statement for all exclusive holds, and one for all others."""
        sent = self._port.now()
        alone = [grant.claim for grant in grants if grant.claim.mode is EXCLUSIVE]
        shared = [grant.claim for grant in grants if grant.claim.mode is not EXCLUSIVE]
        kept: dict[str, Renewed | Lost | Unknown] = {}
        for claims, exclusive in ((alone, True), (shared, False)):
            if claims:
                found = await self._renew(claims, exclusive, deadline)
                for claim in claims:
                    if isinstance(found, Unknown):
                        kept[claim.owner] = found
                    elif claim.owner.encode() in found:
                        kept[claim.owner] = Renewed(valid_until(sent, claim.ttl))
                    else:
                        kept[claim.owner] = Lost(NOT_OURS)
        self._sweeper.perhaps(sent)
        return [kept[grant.claim.owner] for grant in grants]

    async def _renew(
        self, claims: Sequence[Claim], exclusive: bool, deadline: float
    ) -> set[bytes] | Unknown:
        """The owners of what was extended."""
        words, dialect, number = self._words, self._driver.dialect, len(claims)
        owners = [claim.owner.encode() for claim in claims]
        values = list(dialect.packed(owners))
        if exclusive:
            values = [*dialect.packed([claim.name.encode() for claim in claims]), *values]
        text = words.renew(number) if exclusive else words.renew_claims(number)
        result = await self._desk.ask_again(text, values, deadline, renewing=True)
        if isinstance(result, Unknown):
            return result
        if not dialect.returning:
            if result.changed == number:
                return set(owners)
            text = words.kept(number) if exclusive else words.kept_claims(number)
            result = await self._desk.ask_again(text, values, deadline, renewing=True)
            if isinstance(result, Unknown):
                return result
        return {row[0] for row in result.rows}
