"""The lobby: whoever of this client waits for a lock whose store keeps no line.

Contract: those who wait for a name here stand in a line of their own, in memory, and only the first
of them looks: when a release is announced on the name's channel, when the holder's lease must be
over, and otherwise once a heartbeat; or, where the holder would not announce its release, after
pauses that grow. So a release costs one attempt for each client that waits, not for each waiter.

Laws kept here: 3 (nothing of a waiter is in the store), 6 as far as it goes.
Hazards: a message may come between an attempt and its answer, so it is noted with the line and not
with a wait; who was called and gives up before its attempt is answered passes the call on; a first
that cannot reach the store would keep the others waiting, so they then ask for themselves.
Partners: `literal.py`, which attempts; `waiting.py`, whose room listens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.backends.redis.waiting import Room
from holdfast.core.backoff import pause
from holdfast.core.port import Event, Port
from holdfast.types import Claim

__all__ = ["Lobby", "Sight"]

LINGER = 2.0
"""Seconds for which a name's channel is listened to when nobody waits any more: often somebody will
in a moment."""

FIRST = 1 / 8
"""The first pause, as a part of the longest."""

HASTE, MOST_HASTE = 0.005, 0.05
"""With less time left than two answers take, within these bounds, nobody looks any more: an attempt
that gets no answer in time means a store that is away, and this one is only busy."""

LITTLE = 0.001
"""When a lease is over by the clock, Redis needs a moment to say so."""


class Sight:
    """What an attempt saw that was refused."""

    __slots__ = ("announced", "ends", "heard", "took")

    def __init__(self, took: float, heard: int, ends: float, announced: bool) -> None:
        self.took = took  # seconds from asking to the answer
        self.heard = heard  # the calls before it was sent; -1: nobody listened
        self.ends = ends  # when the holder's lease is over; inf: it has no end
        self.announced = announced  # whether we shall hear of its release


class Ticket:
    """One waiter."""

    __slots__ = ("asking", "called", "event", "gone")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.called = False  # another look is worth it
        self.asking = False  # its attempt is under way
        self.gone = False

    def call(self) -> None:
        self.called = True
        self.event.set()


class Line:
    """One name that somebody here waits for, or did a moment ago."""

    __slots__ = (
        "_mutex",
        "calls",
        "channel",
        "idle_since",
        "look_at",
        "looks",
        "tickets",
        "watched",
    )

    def __init__(self, channel: str, port: Port) -> None:
        self.channel = channel
        self.tickets: dict[str, Ticket] = {}  # in the order of their coming
        self.calls = 0
        self.watched = False
        self.look_at = math.inf
        self.looks = 0  # in a row, for a release that nobody would announce
        self.idle_since = math.inf
        self._mutex = port.mutex()

    def first(self) -> Ticket | None:
        return next(iter(self.tickets.values()), None)

    def call(self) -> None:
        """A release was announced; or it is from now on that one would be heard, or not."""
        with self._mutex:
            self.calls += 1
            self.call_first()

    def call_first(self) -> None:
        first = self.first()
        if first is not None:
            first.call()

    def leave(self, owner: str, now: float) -> Ticket | None:
        ticket = self.tickets.pop(owner, None)
        if not self.tickets:
            self.idle_since = min(self.idle_since, now)
        return ticket


class Lobby:
    def __init__(
        self, port: Port, room: Room, channel: Callable[[str], str], heartbeat: float, poll: float
    ) -> None:
        self._port = port
        self._room = room
        self._channel = channel
        self._heartbeat = heartbeat
        self._poll = poll
        self._lines: dict[str, Line] = {}
        self._closed = False
        room.tidy = self._tidy

    # -- around an attempt ------------------------------------------------------------------------

    def asks(self, claim: Claim) -> int:
        """An attempt is about to be sent: what has been heard until now is taken care of by it."""
        line = self._lines.get(claim.name)
        if line is None:
            return -1
        with self._port.mutex():
            ticket = line.tickets.get(claim.owner)
            if ticket is not None:
                ticket.asking, ticket.called = True, False
            return line.calls if line.watched else -1

    def granted(self, claim: Claim, until: float) -> None:
        """It has it; and the next in line knows until when, without asking."""
        line = self._lines.get(claim.name)
        if line is None:
            return
        with self._port.mutex():
            now = self._port.now()
            line.leave(claim.owner, now)
            line.looks = 0
            line.look_at = min(until, now + self._heartbeat)
            first = line.first()
            if first is not None:
                first.event.set()

    def failed(self, claim: Claim) -> None:
        """The store is silent or away: everybody finds out for themselves."""
        line = self._lines.get(claim.name)
        if line is not None:
            with self._port.mutex():
                for ticket in line.tickets.values():
                    ticket.call()

    # -- waiting ----------------------------------------------------------------------------------

    async def wait(self, claim: Claim, sight: Sight, deadline: float) -> None:
        """Until another attempt is worth making, or the deadline."""
        last = deadline - min(max(HASTE, 2 * sight.took), MOST_HASTE)
        looks = False
        try:
            looks = await self._until_worth_it(claim, sight, last)
        finally:
            if not looks:
                self.leave(claim)
        if not looks:
            await self._port.event().wait(deadline)

    async def _until_worth_it(self, claim: Claim, sight: Sight, deadline: float) -> bool:
        """True: it keeps its place, for what it does next is an attempt, or to withdraw."""
        port = self._port
        line, ticket = self._enter(claim, sight)
        while not (ticket.gone or self._closed):
            now = port.now()
            if now >= deadline:
                return False
            with port.mutex():
                limit = min(deadline, line.look_at) if line.first() is ticket else deadline
            if ticket.called or now >= limit:
                return True
            await ticket.event.wait(limit)
            ticket.event.clear()
        return True

    def _enter(self, claim: Claim, sight: Sight) -> tuple[Line, Ticket]:
        name, owner = claim.name, claim.owner
        with self._port.mutex():
            line = self._lines.get(name)
            if line is None:
                line = Line(self._channel(name), self._port)
                self._lines[name] = line
            ticket = line.tickets.get(owner)
            if ticket is None:
                ticket = line.tickets[owner] = Ticket(self._port.event())
            ticket.asking = False
            line.idle_since = math.inf
            look_at = self._look_at(line, sight)
            line.look_at = look_at if line.first() is ticket else min(line.look_at, look_at)
            if not line.watched:
                self._room.watch(line.channel, line.call)
                line.watched = True
                if self._room.hears(line.channel):  # then nobody will tell us that it is
                    line.calls += 1
            else:
                self._room.attend()
            # Something was heard after the attempt was sent, perhaps before we stood here. With no
            # call at all yet, there will be one when the channel is listened to.
            if line.calls and sight.heard != line.calls:
                line.call_first()
        return line, ticket

    def _look_at(self, line: Line, sight: Sight) -> float:
        now = self._port.now()
        if sight.announced:
            limit = now + self._heartbeat
        else:
            line.looks += 1
            random, poll = self._port.random(), self._poll
            limit = now + pause(line.looks, random, math.inf, first=FIRST * poll, longest=poll)
        return min(limit, max(sight.ends, now) + LITTLE)

    def leave(self, claim: Claim) -> None:
        """It waits no longer; nothing if it did not. Never waits."""
        line = self._lines.get(claim.name)
        if line is None:
            return
        with self._port.mutex():
            ticket = line.leave(claim.owner, self._port.now())
            if ticket is None:
                return
            ticket.gone = True
            ticket.event.set()
            first = line.first()
            if first is None:
                return
            if ticket.called or ticket.asking:
                first.call()  # what it was called for, nobody has looked at
            else:
                first.event.set()  # perhaps it is only now the first

    def close(self) -> None:
        self._closed = True
        for line in list(self._lines.values()):
            for ticket in list(line.tickets.values()):
                ticket.event.set()

    def _tidy(self) -> None:
        """Listen no longer where nobody has waited for a while."""
        now = self._port.now()
        for name, line in list(self._lines.items()):
            if now - line.idle_since > LINGER:
                with self._port.mutex():
                    if line.tickets:
                        continue
                    self._lines.pop(name, None)
                self._room.unwatch(line.channel, line.call)
