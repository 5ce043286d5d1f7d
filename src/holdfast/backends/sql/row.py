"""The `row` strategy: a row for each name, a table of claims beside it. The default.

Contract: `core/backend.py`. Uncontended, an exclusive claim is one UPDATE that commits itself, and
so is its release: guarded by the expiry and by `line`, which says that more is known of the name
than one holder. Everything else is a step (`step.py`), under the lock of the name's row; a name of
which a line was seen last is not tried by one statement first, which would be in vain.

A release hands over by writing the next in line into the row, for a `window`, and calls it. A call
that names the token is believed (`room.py`), and the first renewal, which comes soon, makes it the
full lease; else the one called confirms by a statement of its own, which dates it: from before that
statement was sent (law 1). Who dies between costs the window, not its ttl.

Law 3: a statement that arrives late finds `line` raised by the tombstone of its claim, in the very
row that it would change: no snapshot can hide it.
Partners: `leaving.py`, how claims end; `table.py`, the rest of it; `words.py`, `rules.py`,
`step.py`; `room.py`, where to wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.backends.common import holder_of
from holdfast.backends.sql.bells import Bells
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.leaving import Leaving
from holdfast.backends.sql.presence import SqlRoll, appear
from holdfast.backends.sql.room import Place, Ticket
from holdfast.backends.sql.rules import FAR, MODES, Entry, Line, microseconds
from holdfast.backends.sql.session import Statement
from holdfast.backends.sql.table import EXCLUSIVE, FAILOVER
from holdfast.backends.sql.words import WAITER
from holdfast.core.backoff import pause
from holdfast.core.lease import valid_until
from holdfast.core.presence import Link, Roll
from holdfast.errors import Unavailable
from holdfast.types import (
    Buried,
    Busy,
    Capabilities,
    Claim,
    Grant,
    Lost,
    Mode,
    Renewed,
    Unknown,
)

__all__ = ["RowBackend"]

AT_ONCE = 0.01
"""Seconds in which a bell that hangs does not ring: who finds one quicker must not spin."""

ONE_LOOK = 2.0
"""Seconds that a waiter's own look may take; then it is made again."""


class RowBackend(Leaving):
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="ttl",
        failover=FAILOVER,
    )

    def __init__(self, driver: Driver, values: Mapping[str, Any]) -> None:
        super().__init__(driver, values)
        self._pooler: str = values["pooler"]

    # -- for the crash detector -------------------------------------------------------------------

    async def appear(self, presence: str, deadline: float) -> Link:
        sight, trusted = self._driver.dialect.sight, self._pooler == "session"
        return await appear(self._desk, self._port, sight, presence, trusted, deadline)

    def roll(self) -> Roll:
        sight = self._driver.dialect.sight
        return SqlRoll(self._desk, self._port, sight, self._words, self._steps)

    # -- claims -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        answer = await self._attempt(claim, queue, deadline)
        if self._bells is not None and (isinstance(answer, Grant) or queue):
            await self._bells.hang(claim.owner)
        return answer

    async def _attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        busy: Busy | None = None
        if queue and claim.name in self._lines:
            self._sweeper.perhaps(self._port.now())
        elif claim.mode is EXCLUSIVE:
            words = self._words
            name, owner, ttl = claim.name.encode(), claim.owner.encode(), microseconds(claim.ttl)
            info = self._info.of(claim.info)
            sent = self._port.now()
            self._sweeper.perhaps(sent)
            # The uncontended path: one statement.
            taken = await self._desk.ask(words.take, (owner, ttl, ttl, info, name), deadline)
            if isinstance(taken, Unknown):
                return taken
            if taken.changed:
                return Grant(claim, valid_until(sent, claim.ttl), words.number(taken))
            new: Statement = (words.take_new, (name, owner, ttl, ttl, info))
            found = await self._desk.ask_all((new, (words.peek, (name,))), deadline)
            if isinstance(found, Unknown):
                return found
            taken, looked = found
            if taken.changed:
                return Grant(claim, valid_until(sent, claim.ttl), words.number(taken))
            if looked.rows:
                _, holder, left, _, info = looked.rows[0]
                if left > 0 and holder != owner:
                    busy = Busy(holder_of(info))
        if not queue and busy is not None:
            return busy
        seen = [busy] if busy is not None else []
        try:
            answer = await self._contend(claim, queue, deadline, seen)
        except Unavailable:
            if not seen or self._port.now() < deadline:
                raise
            return seen[-1]  # it was, when last seen, and there was no time to see more
        if isinstance(answer, Unknown) and seen and self._port.now() >= deadline:
            claim.unanswered = True  # it may still come to stand in line
            return seen[-1]
        return answer

    async def _contend(
        self, claim: Claim, queue: bool, deadline: float, seen: list[Busy]
    ) -> Grant | Busy | Buried | Unknown:
        """What one statement could not decide. `seen` is told of a holder that was seen, though
        nothing may come of it."""
        name, owner = claim.name.encode(), claim.owner.encode()

        def decide(line: Line) -> tuple[Line, Entry | None] | Buried:
            if owner in line.graves:
                return Buried()
            self._remember(claim, line)
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
            seen.append(Busy(holder_of(line.holder)))
            return line, None

        sent = self._port.now()
        answer = await self._steps.step(name, owner, _nothing, decide, deadline)
        if answer is None or isinstance(answer, Unknown | Buried):
            return answer or Unknown("the row of this name came and went")
        line, held = answer
        if held is not None:
            return Grant(claim, valid_until(sent, claim.ttl), held.fence)
        return Busy(holder_of(line.holder), None, self._place(line, sent))

    def _place(self, line: Line, sent: float) -> Place | None:
        mine = line.mine
        return None if mine is None else Place(mine.place, self._look_at(line), sent, line.now)

    def _look_at(self, line: Line) -> float:
        """When the first of ours in this line looks by itself, on our clock and surely not too
        early."""
        now = self._port.now()
        moment = line.mine.look_at if line.mine is not None else FAR
        local = math.inf if moment == FAR else now + (moment - line.now) / 1e6
        return local if self._driver.dialect.notify else min(local, now + self._patience)

    def _entry(self, claim: Claim, now: int) -> Entry:
        ttl = microseconds(claim.ttl)
        return Entry(
            WAITER, 0, claim.owner.encode(), MODES.index(claim.mode), claim.permits, claim.limit,
            ttl, min(ttl, microseconds(self._patience)), now, now, 0, None,
            self._client.encode(), self._info.of(claim.info),
        )  # fmt: skip

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        port, room = self._port, self._room
        place: Place | None = busy.token
        if place is None:
            return None
        ticket = room.enter(claim, place)
        try:
            while not (room.closed or ticket.off):
                try:
                    limit = room.heard_until(deadline)
                    if self._bells is None:
                        await ticket.event.wait(limit)
                    else:
                        await self._hearken(self._bells, ticket, limit)
                    now = port.now()
                    if now >= deadline or room.closed:
                        break
                    if limit == deadline and not ticket.event.is_set() and not ticket.called:
                        continue
                    ticket.event.clear()
                    found = await self._find_out(claim, ticket, min(deadline, now + ONE_LOOK))
                except Unavailable:
                    if port.now() >= deadline or room.closed:
                        break  # it was busy when last seen, and there was no time to see more
                    raise
                if not isinstance(found, bool):
                    return found
                if not found:
                    break
        finally:
            room.leave(ticket)
        return None

    async def _hearken(self, bells: Bells, ticket: Ticket, deadline: float) -> None:
        """Until the bell of who is ahead rings, or somebody calls; and not again and again at once
        if that bell does not hang."""
        port = self._port
        while not ticket.event.is_set() and port.now() < deadline:
            begun = port.now()
            ahead = await self._ahead(ticket, min(deadline, begun + ONE_LOOK))
            if ahead == ticket.owner:  # it was given the lock meanwhile
                ticket.called = True
                return
            if ahead is None:
                await ticket.event.wait(min(deadline, begun + self._poll))
                return
            rang = await bells.wait(ahead, min(deadline, begun + ONE_LOOK))
            if rang is None:
                await ticket.event.wait(min(deadline, port.now() + self._poll))
            elif rang:
                ticket.called = True
                if port.now() - begun < AT_ONCE:
                    ticket.vain += 1
                    again = pause(
                        ticket.vain, port.random(), math.inf, first=2 * AT_ONCE, longest=self._poll
                    )
                    await ticket.event.wait(min(deadline, port.now() + again))
                return
            ticket.vain = 0

    async def _ahead(self, ticket: Ticket, deadline: float) -> bytes | None:
        """The owner of whoever leaves before this one can hold, if there is one that decides."""
        words, name = self._words, ticket.claim.name.encode()
        found = await self._desk.ask_all(
            ((words.before, (name, ticket.place.number)), (words.peek, (name,))), deadline
        )
        if isinstance(found, Unknown):
            return None
        before, row = found
        if before.rows:
            return bytes(before.rows[0][0])
        return bytes(row.rows[0][1]) or None if row.rows else None

    async def _find_out(self, claim: Claim, ticket: Ticket, limit: float) -> Grant | bool:
        """The grant, if there is one; else whether it still stands in line."""
        if ticket.called:
            ticket.called = False
            grant = ticket.grant(self._port.now())
            grant = grant or await self._confirmed(claim, limit)
            if grant is not None:
                return grant
        owner = claim.owner.encode()

        def look(line: Line) -> tuple[Line, Entry | None]:
            self._remember(claim, line)
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
        if line.mine is None:
            return False
        ticket.told = sent, line.now
        self._room.looks(ticket)
        return True

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        answers = list(await super().renew(grants, deadline))
        # Who held alone may share by now: a renewal and a downgrade that crossed.
        for at, (grant, answer) in enumerate(zip(grants, answers, strict=True)):
            if isinstance(answer, Lost) and grant.claim.mode is EXCLUSIVE:
                sent = self._port.now()
                found = await self._renew([grant.claim], False, deadline)
                if isinstance(found, Unknown):
                    answers[at] = found
                elif found:
                    answers[at] = Renewed(valid_until(sent, grant.claim.ttl))
        if self._bells is not None:
            for grant, answer in zip(grants, answers, strict=True):
                if isinstance(answer, Lost):
                    await self._bells.ring(grant.claim.owner)
        return answers

    async def _confirmed(self, claim: Claim, deadline: float) -> Grant | None:
        """It was called: one statement makes it the whole lease."""
        words, owner = self._words, claim.owner.encode()
        sent = self._port.now()
        if claim.mode is EXCLUSIVE:
            values = (claim.name.encode(), owner)
            result = await self._desk.ask_again(words.confirm, values, deadline)
        else:
            result = await self._desk.ask_again(words.confirm_claim, (owner,), deadline)
        if isinstance(result, Unknown) or not result.changed:
            return None
        fence = None if claim.mode is Mode.PERMITS else words.number(result)
        return Grant(claim, valid_until(sent, claim.ttl), fence)


def _nothing(line: Line) -> None:
    """A look changes nothing by itself."""
