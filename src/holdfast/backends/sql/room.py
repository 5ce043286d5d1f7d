"""The waiting room: whoever of this client stands in line, and how their turn reaches them.

Contract: a waiter enters with its place and sleeps until it is called: because it holds, or as a
look of its own is worth it. One attendant for a client (`attendant.py`) hears and asks for all. In
each line it has the first of this client's waiters look when a holder or waiter ahead should have
ended: lines are served in order, so that one vouches for the others.

Laws 1 (what a call gives is dated by the database's clock, from when this waiter last asked), 6
(waiting costs the heartbeat). Hazards: a call may come before the answer that says "in line" (it is
kept in `_early`), twice, or for nobody; and who let it in may have waited for the row while this
one came to stand in line, so that what it gives began before that.

A call is `place`: find out; or `place token clock span owner`: it holds from that moment of the
database on, for so many microseconds, the window of whoever let it in, and need not ask. The owner
must be right, too: a server that took over may give the same numbers again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from holdfast.backends.sql.attendant import Attendant, Ear
from holdfast.core.lease import called_until
from holdfast.core.port import Port
from holdfast.types import Claim, Grant

__all__ = ["Ear", "Place", "Room", "Ticket"]

ENOUGH = 0.7
"""Of the window: if less is left, who was called asks before it believes it."""

EARLY = 1000
"""So many calls are kept for waiters that have not heard yet that they wait."""


class Place:
    """What an attempt that stands in line is told."""

    __slots__ = ("clock", "look_at", "number", "told")

    def __init__(self, number: int, look_at: float, told: float, clock: int) -> None:
        self.number = number
        self.look_at = look_at  # on the port's clock
        self.told = told  # when its heartbeat began to count
        self.clock = clock  # the database's, then or later


class Ticket:
    __slots__ = (
        "beat_at", "called", "claim", "event", "given", "look_at", "number", "owner", "place",
        "told", "ttl", "vain",
    )  # fmt: skip

    def __init__(self, claim: Claim, place: Place, port: Port) -> None:
        self.claim = claim
        self.place = place
        self.event = port.event()
        self.called = False  # it holds, or must find out why it stands in line no more
        self.given: tuple[int, int, int] | None = None  # by a call: token or 0, clock, span
        self.told = place.told, place.clock  # when we last asked, and the database's clock then
        self.look_at = place.look_at
        self.beat_at = 0.0
        self.number = place.number
        self.owner = claim.owner.encode()
        self.ttl = claim.ttl
        self.vain = 0  # bells in a row that rang for nothing

    def look(self) -> None:
        self.look_at = math.inf
        self.event.set()

    def call(self, given: str = "") -> None:
        *numbers, owner = given.split(" ")
        if len(numbers) == 3 and owner == self.claim.owner:
            token, clock, span = map(int, numbers)
            self.given = token, clock, span
        self.called = True
        self.event.set()

    def grant(self, now: float) -> Grant | None:
        """What a call gave; None if that must be asked for: there was none, or too little of the
        window is left for a renewal that a busy machine delays."""
        given, self.given = self.given, None
        if given is None:
            return None
        token, clock, span = given
        until = called_until(*self.told, clock, span, now)
        if until is None or until - now < ENOUGH * span / 1e6:
            return None
        return Grant(self.claim, until, token or None, confirm_by=now + (until - now) / 3)


class Room:
    def __init__(
        self,
        port: Port,
        heartbeat: float,
        slowest: float,
        open_ear: Callable[[float], Awaitable[Ear]],
    ) -> None:
        self.port = port
        self.heartbeat = heartbeat
        self._slowest = slowest
        self._open_ear = open_ear
        self.closed = False
        self._tickets: dict[int, Ticket] = {}
        self._early: dict[int, str] = {}  # what was called, by place
        self._watchers: dict[str, set[Callable[[], None]]] = {}  # by what they watch
        self._attendant: Attendant | None = None

    # -- waiters ----------------------------------------------------------------------------------

    def enter(self, claim: Claim, place: Place) -> Ticket:
        ticket = Ticket(claim, place, self.port)
        ticket.beat_at = place.told + min(self.heartbeat, claim.ttl / 3)
        with self.port.mutex():
            self._tickets[place.number] = ticket
        early = self._early.pop(place.number, None)
        if early is not None:
            ticket.call(early)
        self._attend(min(ticket.beat_at, ticket.look_at))
        if self.closed:  # looked at after entering: so close() wakes us, or we see it
            ticket.event.set()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        with self.port.mutex():
            if self._tickets.get(ticket.place.number) is ticket:
                del self._tickets[ticket.place.number]

    def call_off(self, owner: str) -> None:
        """Whoever still waits for this claim need not."""
        for ticket in self._all():
            if ticket.claim.owner == owner:
                ticket.event.set()

    def passed_on(self, name: str) -> None:
        """Somebody else's waiter holds this now, after one of this client's."""
        attendant = self._attendant
        if attendant is not None and any(t.claim.name == name for t in self._all()):
            attendant.be_attentive()

    def watch(self, what: str, call: Callable[[], None]) -> None:
        """`call` when this has changed, or may have: from the attendant, and it must not wait."""
        with self.port.mutex():
            self._watchers.setdefault(what, set()).add(call)
        self._attend(0.0)

    def unwatch(self, what: str, call: Callable[[], None]) -> None:
        with self.port.mutex():
            watchers = self._watchers.get(what, set())
            watchers.discard(call)
            if not watchers:
                self._watchers.pop(what, None)

    @property
    def hears(self) -> bool:
        """Whether what is called from now on is heard: who waits need not ask again for that."""
        attendant = self._attendant
        return attendant is not None and not attendant.over and attendant.hears

    def close(self) -> None:
        self.closed = True
        self.call_all(False)
        attendant = self._attendant
        if attendant is not None:
            attendant.wake()

    async def emptied(self, deadline: float) -> None:
        if self._attendant is not None:
            await self._attendant.join(deadline)

    # -- the attendant's half ---------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._tickets or self._watchers)

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    def _all(self) -> list[Ticket]:
        with self.port.mutex():
            return list(self._tickets.values())

    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self._all() if not ticket.called]

    def firsts(self) -> list[Ticket]:
        """Of each line, who of ours is before the others."""
        found: dict[str, Ticket] = {}
        for ticket in self._all():
            other = found.get(ticket.claim.name)
            if other is None or ticket.place.number < other.place.number:
                found[ticket.claim.name] = ticket
        return list(found.values())

    def heard(self, call: str) -> None:
        place, _, given = call.partition(" ")
        number = int(place)
        ticket = self._tickets.get(number)
        if ticket is None:
            while len(self._early) >= EARLY:
                self._early.pop(next(iter(self._early)), None)
            self._early[number] = given
            ticket = self._tickets.get(number)
        if ticket is not None:  # it may have entered between the two
            self._early.pop(number, None)
            ticket.call(given)

    def call_owner(self, owners: set[bytes]) -> None:
        for ticket in self._all():
            if ticket.owner in owners:
                ticket.call()

    def tell_watchers(self, what: str | None = None) -> None:
        with self.port.mutex():
            groups = self._watchers.values() if what is None else [self._watchers.get(what, set())]
            watchers = [call for group in groups for call in group]
        for call in watchers:
            call()

    def call_all(self, held: bool = True) -> None:
        """Everybody finds out for themselves."""
        for ticket in self._all():
            ticket.called = ticket.called or held
            ticket.event.set()
        self.tell_watchers()

    # -- who attends ------------------------------------------------------------------------------

    def _attend(self, moment: float) -> None:
        attendant = self._attendant
        if attendant is None or attendant.over:
            attendant = self._begin()
        if attendant is not None and (attendant.asks or moment < attendant.looks_at):
            attendant.wake()

    def _begin(self) -> Attendant | None:
        with self.port.mutex():
            attendant = self._attendant
            if self.closed or (attendant is not None and not attendant.over):
                return attendant
            attendant = self._attendant = Attendant(self, self._slowest, self._open_ear)
            attendant.start()
            return attendant

    def dismiss(self, attendant: Attendant) -> bool:
        """Whether this attendant may go: then it is over, and who enters now has another one."""
        with self.port.mutex():
            if not self.closed and self.busy:
                return False
            attendant.over = True
            return True
