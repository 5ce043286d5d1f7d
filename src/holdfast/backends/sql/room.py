"""The waiting room: whoever of this client stands in line, and how their turn reaches them.

Contract: a waiter enters with its place and sleeps until it is called: because it holds, or as a
look of its own is worth it. The attendant (`attendant.py`) hears and asks for all. In each line it
has the first of this client's waiters look when a holder or waiter ahead should have ended: lines
are served in order, so that one vouches for the others. What all waiting rooms have in common is in
`backends/attendance.py`.

Laws 1 (what a call gives is dated by the database's clock, from when this waiter last asked), 6
(waiting costs the heartbeat). Hazard: who let it in may have waited for the row while this one came
to stand in line, so that what it gives began before that.

A call is `place`: find out; or `place token clock span owner`: it holds from that moment of the
database on, for so many microseconds, the window of whoever let it in, and need not ask. The owner
must be right, too: a server that took over may give the same numbers again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.backends import attendance
from holdfast.backends.attendance import Hired
from holdfast.core.lease import called_until
from holdfast.core.port import Port
from holdfast.types import Claim, Grant

__all__ = ["Place", "Room", "Ticket"]

ENOUGH = 0.7
"""Of the window: if less is left, who was called asks before it believes it."""


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
        "beat_at", "called", "claim", "event", "given", "look_at", "number", "off", "owner",
        "place", "told", "ttl", "vain",
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
        self.off = False  # called off: nobody shall wait for it
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


class Room(attendance.Room[int, Ticket, str]):
    def __init__(self, port: Port, heartbeat: float, hire: Callable[[Room], Hired]) -> None:
        super().__init__(port, heartbeat, hire)
        self.asks = False  # nobody calls its attendant, so that one asks
        self.attentive = False  # and soon: something may happen

    # -- waiters ----------------------------------------------------------------------------------

    def enter(self, claim: Claim, place: Place) -> Ticket:
        ticket = Ticket(claim, place, self.port)
        ticket.beat_at = place.told + min(self.heartbeat, claim.ttl / 3)
        with self.port.mutex():
            self._tickets[place.number] = ticket
        self._call_early(place.number, ticket)
        self._entered(ticket, min(ticket.beat_at, ticket.look_at), at_once=self.asks)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        with self.port.mutex():
            if self._tickets.get(ticket.place.number) is ticket:
                del self._tickets[ticket.place.number]

    def call_off(self, owner: str) -> None:
        """Whoever still waits for this claim need not; nor has Ctrl-C left it here."""
        for ticket in self.tickets():
            if ticket.claim.owner == owner:
                ticket.off = True  # it is looked after no more, whatever it finds out
                self.leave(ticket)
                ticket.event.set()

    def looks(self, ticket: Ticket) -> None:
        """It has looked, and knows when to look next."""
        self.attend(min(ticket.beat_at, ticket.look_at))

    def passed_on(self, name: str) -> None:
        """Somebody else's waiter holds this now, after one of this client's."""
        if any(ticket.claim.name == name for ticket in self.tickets()):
            self.attentive = True
            self._nudge()

    # -- the attendant's half ---------------------------------------------------------------------

    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self.tickets() if not ticket.called]

    def firsts(self) -> list[Ticket]:
        """Of each line, who of ours is before the others."""
        found: dict[str, Ticket] = {}
        for ticket in self.tickets():
            other = found.get(ticket.claim.name)
            if other is None or ticket.place.number < other.place.number:
                found[ticket.claim.name] = ticket
        return list(found.values())

    def heard(self, call: str) -> None:
        place, _, given = call.partition(" ")
        self._call(int(place), given)

    def call_owner(self, owners: set[bytes]) -> None:
        for ticket in self.tickets():
            if ticket.owner in owners:
                ticket.call()

    def call_all(self) -> None:
        for ticket in self.tickets():
            ticket.called = True
        super().call_all()
