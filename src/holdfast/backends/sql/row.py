"""The `row` strategy: a row for each name, a table of claims beside it. The default.

Contract: `core/backend.py`. Uncontended, an exclusive claim is one UPDATE that commits itself, and
so is its release: guarded by the expiry and by `line`, which says that anything else is known of the
name. Everything else is a step (`step.py`), under the lock of the name's row.

A release hands over by writing the next in line into the row, for a `window`, and calls it; the one
called confirms by a statement of its own, which makes it the full lease and dates it: from before
that statement was sent (law 1). Who dies between costs the window, not its ttl.

Law 3: a statement that arrives late finds `line` raised by the tombstone of its claim, in the very
row that it would change: no snapshot can hide it.
Partners: `words.py`, `rules.py`, `step.py`, `desk.py`; `room.py`, where waiters wait.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.backends.common import info_text, shown
from holdfast.backends.sql.cells import Cells
from holdfast.backends.sql.desk import Desk
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.ear import SessionEar
from holdfast.backends.sql.overview import Overview, told
from holdfast.backends.sql.room import Ear, Place, Room, Ticket
from holdfast.backends.sql.rules import FAR, MODES, Entry, Line, microseconds
from holdfast.backends.sql.schema import Tables
from holdfast.backends.sql.step import Steps
from holdfast.backends.sql.sweep import Sweeper
from holdfast.backends.sql.words import WAITER, Words
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Claim,
    Grant,
    Lost,
    Mode,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["RowBackend"]

EXCLUSIVE = Mode.EXCLUSIVE
NOT_OURS = "the database has it no longer: it expired, or somebody evicted it"
RELEASED = Released()

ONE_LOOK = 2.0
"""Seconds that a waiter's own look may take; then it is made again."""

FAREWELL = 1.0
"""Seconds that closing waits for what runs beside."""


class RowBackend(Overview, Cells):
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="ttl",
        failover=(
            "what the database loses: nothing on a restart, and nothing on the promotion of a "
            "synchronous replica; an asynchronous one may not know of the last grants, and two may "
            "then hold at once until the old lease ends. Tokens still increase if its clock is "
            "later than at any grant before"
        ),
    )

    def __init__(self, driver: Driver, values: Mapping[str, Any]) -> None:
        self._driver = driver
        self._tables = Tables(driver.dialect, values["table"])
        self._words = Words(driver.dialect, self._tables)
        self._limit: int = values["max_connections"]
        self._window: float = values["window"]
        self._heartbeat: float = values["heartbeat"]
        self._poll: float = values["poll"]
        if not 0 < self._heartbeat <= self._window:
            raise Misconfigured(
                f"heartbeat={self._heartbeat:g}: more than 0, and at most the window of "
                f"{self._window:g} s"
            )
        if not 0 < self._poll <= self._window / 2:
            raise Misconfigured(
                f"poll={self._poll:g}: more than 0, and at most half of the window of "
                f"{self._window:g} s"
            )
        self._client = f"holdfast_{secrets.token_hex(8)}"
        self._last_info: tuple[Mapping[str, str] | None, bytes] = (None, b"")

    def open(self, port: Port, signals: Signals) -> None:
        driver, dialect = self._driver, self._driver.dialect
        self._port = port
        self._desk = Desk(driver, self._tables, port, self._limit)
        self._steps = Steps(
            self._desk, self._words, microseconds(self._window), dialect.notify
        )
        self._room = Room(port, self._heartbeat, self._poll, self._open_ear)
        self._sweeper = Sweeper(port, self._desk, self._words, self._steps)

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
        try:
            if calls:
                await session.run(f'LISTEN "{self._client}"', (), deadline)
            hearing = self._driver.hearing(session, self._port)
        except BaseException:
            session.close()
            raise
        return SessionEar(session, dialect, self._words, hearing, calls)

    # -- claims -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        if claim.mode is EXCLUSIVE:
            words, ask = self._words, self._desk.ask
            name, owner, ttl = claim.name.encode(), claim.owner.encode(), microseconds(claim.ttl)
            info = self._info(claim.info)
            sent = self._port.now()
            # The uncontended path: one statement.
            taken = await ask(words.take, (owner, ttl, ttl, info, name), deadline)
            if isinstance(taken, Unknown):
                return taken
            if taken.changed:
                return Grant(claim, valid_until(sent, claim.ttl), words.number(taken))
            self._sweeper.perhaps(sent)
            found = await ask(words.peek, (name,), deadline)
            if isinstance(found, Unknown):
                return found
            if not found.rows:
                sent = self._port.now()
                taken = await ask(words.take_new, (name, owner, ttl, ttl, info), deadline)
                if isinstance(taken, Unknown):
                    return taken
                if taken.changed:
                    return Grant(claim, valid_until(sent, claim.ttl), words.number(taken))
            elif not queue:
                holder, left, _, info = found.rows[0]
                if left > 0 and holder != owner:
                    return Busy(shown(told(info)))
        return await self._contend(claim, queue, deadline)

    async def _contend(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        """What one statement could not decide."""
        name, owner = claim.name.encode(), claim.owner.encode()

        def decide(line: Line) -> tuple[Line, Entry | None] | Buried:
            if owner in line.graves:
                return Buried()
            if owner in line.holders:  # asking twice is asking once
                return line, line.confirm(owner)
            if line.mine is not None:
                if queue:
                    line.stay()
                return line, None
            entry = self._entry(claim, line.now)
            if line.admits(entry.mode, entry.permits, entry.most) and (
                not claim.fair or (not line.waiters and line.complete)
            ):
                line.take(entry)
                return line, entry
            if queue:
                line.enlist(entry)
            return line, None

        sent = self._port.now()
        answer = await self._steps.step(name, owner, _nothing, decide, deadline)
        if answer is None or isinstance(answer, Unknown | Buried):
            return answer or Unknown("the row of this name came and went")
        line, held = answer
        if held is not None:
            return Grant(claim, valid_until(sent, claim.ttl), held.fence)
        return Busy(shown(told(line.holder)), None, self._place(line, sent))

    def _place(self, line: Line, sent: float) -> Place | None:
        mine = line.mine
        return None if mine is None else Place(mine.place, self._look_at(line), sent)

    def _look_at(self, line: Line) -> float:
        """When the first of ours in this line looks by itself, on our clock and surely not too
        early."""
        now = self._port.now()
        moment = line.mine.look_at if line.mine is not None else FAR
        local = math.inf if moment == FAR else now + (moment - line.now) / 1e6
        return local if self._driver.dialect.notify else min(local, now + self._window)

    def _entry(self, claim: Claim, now: int) -> Entry:
        ttl = microseconds(claim.ttl)
        return Entry(
            WAITER, 0, claim.owner.encode(), MODES.index(claim.mode), claim.permits, claim.limit,
            ttl, min(ttl, microseconds(self._window)), now, now, 0, None,
            self._client.encode(), self._info(claim.info),
        )  # fmt: skip

    def _info(self, info: Mapping[str, str]) -> bytes:
        last = self._last_info
        if last[0] is not info:  # one object for all claims of a lock
            last = self._last_info = info, info_text(info).encode()
        return last[1]

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        port, room = self._port, self._room
        place: Place | None = busy.token
        if place is None:
            return None
        ticket = room.enter(claim, place)
        try:
            while not room.closed:
                await ticket.event.wait(deadline)
                ticket.event.clear()
                now = port.now()
                if now >= deadline or room.closed:
                    break
                limit = min(deadline, now + ONE_LOOK)
                try:
                    found = await self._find_out(claim, ticket, limit)
                except Unavailable:
                    if port.now() >= deadline:
                        break  # it was busy when last seen, and there was no time to see more
                    raise
                if not isinstance(found, bool):
                    return found
                if not found:
                    break
        finally:
            room.leave(ticket)
        return None

    async def _find_out(self, claim: Claim, ticket: Ticket, limit: float) -> Grant | bool:
        """The grant, if there is one; else whether it still stands in line."""
        if ticket.called:
            ticket.called = False
            grant = await self._confirmed(claim, limit)
            if grant is not None:
                return grant
        owner = claim.owner.encode()

        def look(line: Line) -> tuple[Line, Entry | None]:
            if owner in line.holders:
                return line, line.confirm(owner)
            line.stay()
            return line, None

        sent = self._port.now()
        answer = await self._steps.step(
            claim.name.encode(), owner, _nothing, look, limit, make=False
        )
        if answer is None or isinstance(answer, Unknown):
            return False  # the next attempt finds out
        line, held = answer
        if held is not None:
            return Grant(claim, valid_until(sent, claim.ttl), held.fence)
        ticket.look_at = self._look_at(line)
        ticket.beat_at = sent + min(self._heartbeat, claim.ttl / 3)
        return line.mine is not None

    async def _confirmed(self, claim: Claim, deadline: float) -> Grant | None:
        """It was called: one statement makes it the whole lease."""
        words, owner = self._words, claim.owner.encode()
        sent = self._port.now()
        if claim.mode is EXCLUSIVE:
            result = await self._desk.ask(words.confirm, (claim.name.encode(), owner), deadline)
        else:
            result = await self._desk.ask(words.confirm_claim, (owner,), deadline)
        if isinstance(result, Unknown) or not result.changed:
            return None
        fence = None if claim.mode is Mode.PERMITS else words.number(result)
        return Grant(claim, valid_until(sent, claim.ttl), fence)

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        self._room.call_off(claim.owner)
        answer = await self._end(claim, tombstone, deadline)
        return answer if isinstance(answer, Unknown) else RELEASED

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        claim = grant.claim
        if claim.mode is EXCLUSIVE and not tombstone:
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

    async def _end(self, claim: Claim, tombstone: bool, deadline: float) -> bool | Unknown | None:
        """Out of the line or out of the lock, with hand-over; whether it held."""
        owner = claim.owner.encode()
        held = False

        def leave(line: Line) -> None:
            nonlocal held
            held = line.remove(owner)
            if tombstone:
                line.bury(owner, microseconds(claim.ttl))

        return await self._steps.step(
            claim.name.encode(), owner, leave, lambda _: held, deadline, make=tombstone
        )

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
        result = await self._desk.ask(text, values, deadline, renewing=True)
        if isinstance(result, Unknown):
            return result
        if not dialect.returning:
            if result.changed == number:
                return set(owners)
            text = words.kept(number) if exclusive else words.kept_claims(number)
            result = await self._desk.ask(text, values, deadline, renewing=True)
            if isinstance(result, Unknown):
                return result
        return {row[0] for row in result.rows}


def _nothing(line: Line) -> None:
    """A look changes nothing by itself."""
