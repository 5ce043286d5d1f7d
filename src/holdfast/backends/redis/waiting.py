"""The waiting room: whoever of this client stands in line, and how their turn reaches them.

Contract: a waiter enters with the place that its attempt was given, and sleeps until it is called.
One listener (`listener.py`) for a client hears the calls and sends the heartbeats; it is started by
who enters and ends when nobody is left.

Laws kept here: 1 (in `calls.py`; and a call counts only if it was heard from the very server that
gave the place: a replica passes on calls that were withdrawn), 6 (waiting costs the heartbeat).
Hazards: a call may come before the answer that says "in line" (it is kept in `_early`), twice, late
or for nobody. What `enter`, `leave` and the listener's end change together, they change under the
port's mutex: between any two of those lines another thread may enter or leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from holdfast.backends.redis.calls import Anchors, Called, Line, Place, Ticket
from holdfast.core.port import Port
from holdfast.types import Claim, Grant

__all__ = ["DEAF", "Room"]

DEAF = "0"
"""What a client says about its listening while it does not (`lines.lua` has the others)."""

EARLY = 1000
"""So many calls are kept for waiters that have not heard yet that they wait."""


class Attendant(Protocol):
    """Who listens, and sends the heartbeats."""

    over: bool
    """Whether it does not listen: not yet, or not any more."""

    def start(self) -> None: ...

    def wake(self) -> None: ...

    def hears(self, channel: str) -> bool: ...

    async def join(self, deadline: float) -> None: ...


class Hire(Protocol):
    def __call__(self, room: Room) -> Attendant: ...


class Room:
    def __init__(self, port: Port, channel: str, heartbeat: float, hire: Hire) -> None:
        self.port = port
        self.channel = channel
        self.heartbeat = heartbeat
        self.hearing = DEAF
        self.anchors = Anchors()
        self.lines: dict[str, Line] = {}
        self.watched: dict[str, set[Callable[[], None]]] = {}  # channels, and who is told
        self.tidy: Callable[[], None] | None = None  # done by the listener, once a heartbeat
        self.looks_at = math.inf  # when the listener looks by itself next
        self.closed = False
        self._hire = hire
        self._listener: Attendant | None = None
        self._tickets: dict[str, Ticket] = {}
        self._early: dict[str, Called] = {}

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
        called = self._early.pop(claim.owner, None)
        if called is not None:
            ticket.call(called)
        # What was called before we listened is heard of by looking.
        beat_at = place.sent if place.hearing == DEAF else place.sent + line.interval
        beat_at = min(beat_at, place.look_at)
        if beat_at < line.beat_at:
            line.beat_at = beat_at
        self._attend(urgent=beat_at < self.looks_at)
        if self.closed:  # looked at after entering: so close() wakes us, or we see it
            ticket.event.set()
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

    def watch(self, channel: str, call: Callable[[], None]) -> None:
        """`call` at every message on this channel, once it is listened to, and when that fails:
        from the listener's thread, and it must not wait."""
        with self.port.mutex():
            self.watched.setdefault(channel, set()).add(call)
        self._attend(urgent=True)

    def hears(self, channel: str) -> bool:
        """Whether this channel is listened to already: who watches it then is not told so."""
        listener = self._listener
        return listener is not None and not listener.over and listener.hears(channel)

    def unwatch(self, channel: str, call: Callable[[], None]) -> None:
        with self.port.mutex():
            watchers = self.watched.get(channel)
            if watchers is not None:
                watchers.discard(call)
                if not watchers:
                    del self.watched[channel]

    def close(self) -> None:
        self.closed = True
        self.call_all()
        listener = self._listener
        if listener is not None:
            listener.wake()

    async def emptied(self, deadline: float) -> None:
        if self._listener is not None:
            await self._listener.join(deadline)

    # -- the listener -----------------------------------------------------------------------------

    def _attend(self, urgent: bool) -> None:
        """See to it that somebody listens, and looks soon if it is urgent."""
        listener = self._listener
        if listener is None or listener.over:
            listener = self._begin()
        if urgent and listener is not None:
            listener.wake()

    def _begin(self) -> Attendant | None:
        with self.port.mutex():
            listener = self._listener
            if self.closed or (listener is not None and not listener.over):
                return listener
            listener = self._listener = self._hire(self)
            listener.start()
            return listener

    def dismiss(self, listener: Attendant) -> bool:
        """Whether this listener may go: then it is over, and who enters now hires another one."""
        with self.port.mutex():
            if not self.closed and (self.lines or self.watched):
                return False
            listener.over = True
            return True

    def current(self, listener: Attendant) -> bool:
        return self._listener is listener

    def heard(self, channel: bytes, payload: bytes, run_id: str) -> None:
        """A message, from this server. Called by the listener's thread or loop."""
        name = channel.decode()
        if name != self.channel:
            for call in list(self.watched.get(name, ())):
                call()
            return
        owner, fence, clock, span = payload.decode().split(" ")
        called = Called(int(fence), int(clock), int(span), run_id)
        ticket = self._tickets.get(owner)
        if ticket is None:
            while len(self._early) >= EARLY:
                self._early.pop(next(iter(self._early)), None)
            self._early[owner] = called
            ticket = self._tickets.get(owner)  # it may have entered between the two
        if ticket is not None:
            self._early.pop(owner, None)
            ticket.call(called)

    def firsts(self, now: float) -> list[tuple[Line, Ticket]]:
        """For each line whose heartbeat is due, the one to ask for."""
        with self.port.mutex():
            due = [line for line in self.lines.values() if line.beat_at <= now]
            return [(line, first) for line in due if (first := line.first()) is not None]

    def next_beat(self) -> float:
        with self.port.mutex():
            waited_for = [line for line in self.lines.values() if line.tickets]
            return min((line.beat_at for line in waited_for), default=math.inf)

    def answered(self, line: Line, ticket: Ticket, grant: Grant | None) -> None:
        """Granted without a call that reached us, or dropped from the line."""
        ticket.grant = grant
        with self.port.mutex():
            line.tickets.pop(ticket.claim.owner, None)  # the next one of this line is asked for now
        ticket.event.set()

    def call_all(self, line: Line | None = None) -> None:
        """Everybody, or everybody in a line, asks for themselves."""
        with self.port.mutex():
            tickets = list((self._tickets if line is None else line.tickets).values())
            watchers = [] if line else [c for group in self.watched.values() for c in group]
        for ticket in tickets:
            ticket.event.set()
        for call in watchers:
            call()
