"""The waiting room: whoever of this client stands in line, and how their turn reaches them.

Contract: a waiter enters with the place that its attempt was given, and sleeps until it is called.
Whoever of a line is first here is asked for, once a heartbeat, by the listener (`listener.py`).
What all waiting rooms have in common is in `backends/attendance.py`.

Laws kept here: 1 (in `calls.py`; and a call counts only if it was heard from the very server that
gave the place: a replica passes on calls that were withdrawn), 6 (waiting costs the heartbeat).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.backends import attendance
from holdfast.backends.attendance import Hired
from holdfast.backends.redis.calls import Anchors, Called, Line, Place, Ticket
from holdfast.core.port import Port
from holdfast.types import Claim, Grant

__all__ = ["DEAF", "Room"]

DEAF = "0"
"""What a client says about its listening while it does not (`lines.lua` has the others)."""


class Room(attendance.Room[str, Ticket, Called]):
    def __init__(
        self, port: Port, channel: str, heartbeat: float, hire: Callable[[Room], Hired]
    ) -> None:
        super().__init__(port, heartbeat, hire)
        self.channel = channel
        self.hearing = DEAF
        self.anchors = Anchors()
        self.lines: dict[str, Line] = {}
        self.tidy: Callable[[], None] | None = None  # done by the listener, once a heartbeat

    # -- waiters ----------------------------------------------------------------------------------

    def enter(self, claim: Claim, place: Place) -> Ticket:
        """Somebody waits from now on. Whatever becomes of this call, `leave` undoes it."""
        ticket = Ticket(claim, place, self.port.event())
        with self.port.mutex():
            line = self.lines.get(claim.name)
            if line is None:
                line = Line(max(0.05, min(self.heartbeat, claim.ttl / 3)))
                self.lines[claim.name] = line
            line.tickets[claim.owner] = ticket
            self._tickets[claim.owner] = ticket
        self._call_early(claim.owner, ticket)
        # What was called before we listened is heard of by looking.
        beat_at = place.sent if place.hearing == DEAF else place.sent + line.interval
        beat_at = min(beat_at, place.look_at)
        self.look_by(line, beat_at)
        self._entered(ticket, beat_at)
        return ticket

    def leave(self, claim: Claim) -> None:
        """It waits no longer; nothing if it did not."""
        with self.port.mutex():
            self._tickets.pop(claim.owner, None)
            line = self.lines.get(claim.name)
            if line is not None:
                line.tickets.pop(claim.owner, None)
                if not line.tickets:
                    del self.lines[claim.name]
        self._early.pop(claim.owner, None)

    def call_off(self, claim: Claim) -> None:
        """Whoever still waits for this claim need not."""
        with self.port.mutex():  # or one that enters between the two would leave, and wait on
            ticket = self._tickets.get(claim.owner)
            self.leave(claim)
        if ticket is not None:
            ticket.event.set()

    def grant(self, ticket: Ticket) -> Grant | None:
        """What the ticket was granted; None when that must be asked for."""
        if ticket.grant is not None:
            return ticket.grant
        called = ticket.called
        if called is None or called.run_id != ticket.place.run_id:
            return None
        now = self.port.now()
        until = self.anchors.until(called, now)
        if until is None or until <= now:
            return None
        return Grant(ticket.claim, until, called.fence or None, confirm_by=now + (until - now) / 3)

    # -- the listener -----------------------------------------------------------------------------

    def dismiss(self, attendant: Hired) -> bool:
        with self.port.mutex():
            dismissed = super().dismiss(attendant)
            if dismissed:
                self.hearing = DEAF  # before anybody can hire the next
            return dismissed

    def heard(self, channel: bytes, payload: bytes, run_id: str) -> None:
        """A message, from this server. Called by the listener's thread or loop."""
        name = channel.decode()
        if name != self.channel:
            self.tell_watchers(name)
            return
        try:
            owner, fence, clock, span = payload.decode().split(" ")
            called = Called(int(fence), int(clock), int(span), run_id)
        except ValueError:
            return  # somebody else's message
        self._call(owner, called)

    def firsts(self, now: float) -> list[tuple[Line, Ticket]]:
        """For each line whose heartbeat is due, the one to ask for. What is found out sets the next
        one (`look_by`): no later than whoever enters meanwhile wants it."""
        with self.port.mutex():
            due = [line for line in self.lines.values() if line.beat_at <= now]
            found = [(line, first) for line in due if (first := line.first()) is not None]
            for line, _ in found:
                line.beat_at = math.inf
            return found

    def look_by(self, line: Line, moment: float) -> None:
        with self.port.mutex():
            line.beat_at = min(line.beat_at, moment)

    def next_beat(self) -> float:
        with self.port.mutex():
            waited_for = [line for line in self.lines.values() if line.tickets]
            return min((line.beat_at for line in waited_for), default=math.inf)

    def answered(self, line: Line, ticket: Ticket, grant: Grant | None) -> None:
        """Granted without a call that reached us, or dropped from the line."""
        ticket.grant = grant
        with self.port.mutex():
            if line.tickets.get(ticket.claim.owner) is ticket:  # it may be here again
                del line.tickets[ticket.claim.owner]
            line.beat_at = 0.0  # the next one of this line is asked for now
        ticket.event.set()

    def call_line(self, line: Line) -> None:
        """Everybody in this line asks for themselves."""
        with self.port.mutex():
            tickets = list(line.tickets.values())
        for ticket in tickets:
            ticket.event.set()
