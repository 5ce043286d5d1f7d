"""How claims of the `row` strategy end: given back, withdrawn, or shared from now on.

Contract: `core/backend.py`. A release of which nothing else is known is one statement; else it is a
step, which hands over to the next in line. Whoever rings the bells of MySQL's named locks does so
when that is done. Hazard: of a name that others want one statement alone would be in vain; such
names are remembered, and what is remembered wrongly costs a request, never a lock.
Partner: `row.py`, how claims begin and are waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.backends.sql.bells import WINDOW, Bells
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.rules import Line, microseconds
from holdfast.backends.sql.table import EXCLUSIVE, NOT_OURS, RELEASED, TableBackend
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.types import AlreadyLost, Claim, Grant, Lost, Released, Unknown

__all__ = ["Leaving"]

NAMES = 1000
"""So many names of which a line was seen are remembered."""


class Leaving(TableBackend):
    def __init__(self, driver: Driver, values: Mapping[str, Any]) -> None:
        super().__init__(driver, values)
        self._wake = values.get("wake") == "named-lock"
        if self._wake:
            self._window = max(self._window, WINDOW)
        self._bells: Bells | None = None
        self._lines: dict[str, None] = {}  # names that others wanted when last seen

    def open(self, port: Port, signals: Signals) -> None:
        super().open(port, signals)
        if self._wake:
            self._bells = Bells(self._driver, port, self._limit)

    async def close(self) -> None:
        if self._bells is not None:
            self._bells.close()
        await super().close()

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        self._room.call_off(claim.owner)
        answer = await self._end(claim, tombstone, deadline)
        if self._bells is not None:
            await self._bells.ring(claim.owner)
        return answer if isinstance(answer, Unknown) else RELEASED

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        answer = await self._release(grant.claim, tombstone, deadline)
        if self._bells is not None:
            await self._bells.ring(grant.claim.owner)
        return answer

    async def _release(
        self, claim: Claim, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        if claim.mode is EXCLUSIVE and not tombstone and claim.name not in self._lines:
            values = (claim.name.encode(), claim.owner.encode())
            given = await self._desk.ask(self._words.give, values, deadline)
            if isinstance(given, Unknown):
                return given
            if given.changed:
                return RELEASED  # and nobody waits
        answer = await self._end(claim, tombstone, deadline)
        if isinstance(answer, Unknown):
            return answer
        return RELEASED if answer else AlreadyLost(NOT_OURS)

    async def downgrade(self, grant: Grant, deadline: float) -> Lost | Unknown | None:
        claim, owner = grant.claim, grant.claim.owner.encode()
        shares = False

        def share(line: Line) -> None:
            nonlocal shares
            shares = line.share(owner)

        name = claim.name.encode()
        answer = await self._steps.step(name, owner, share, lambda _: shares, deadline, make=False)
        if isinstance(answer, Unknown):
            return answer
        return None if answer else Lost(NOT_OURS)

    async def _end(self, claim: Claim, tombstone: bool, deadline: float) -> bool | Unknown | None:
        """Out of the line or out of the lock, with hand-over; whether it held."""
        owner = claim.owner.encode()
        held = False

        def leave(line: Line) -> None:
            nonlocal held
            held = line.remove(owner)
            if tombstone:
                line.bury(owner, microseconds(claim.ttl))

        def left(line: Line) -> bool:
            self._remember(claim, line)
            return held

        return await self._steps.step(
            claim.name.encode(), owner, leave, left, deadline, make=tombstone
        )

    def _remember(self, claim: Claim, line: Line) -> None:
        """Whether others want this name, so that one statement alone would be in vain."""
        others = len(line.holders) - (claim.owner.encode() in line.holders)
        if others or line.waiters or not line.complete:
            if len(self._lines) >= NAMES:
                self._lines.clear()
            self._lines[claim.name] = None
        else:
            self._lines.pop(claim.name, None)
