"""The waiting room: whoever of this client stands in line, and who sees to it that they live.

Contract: a waiter enters with its place and sleeps until it is called: because it holds, or as a
look of its own is worth it. One attendant for a client, a thread or task that lives while somebody
waits, on a connection of its own: it keeps all places of the client alive by one statement for a
heartbeat; it hears calls (PostgreSQL), or asks for all at once who stands in line no more (MySQL),
ever more rarely while nothing happens; and it calls whoever's time to look has come. In each line
that is the first of this client's waiters: lines are served in order, so it vouches for the others.

Law 3: a heartbeat refreshes and never creates. Law 6: waiting costs the heartbeat. Hazard: a call
may come before the answer that says "in line" (it is kept in `_early`), twice, or for nobody.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.backends.sql.session import Trouble
from holdfast.core.backoff import pause
from holdfast.core.port import Port
from holdfast.errors import HoldfastError
from holdfast.types import Claim

__all__ = ["Ear", "Place", "Room", "Ticket"]

log = logging.getLogger("holdfast")

LINGER = 5.0
"""How long the attendant stays when nobody waits any more."""

PATIENCE = 1.0
"""How long it gives a server to answer, at most."""

EARLY = 1000
"""So many calls are kept for waiters that have not heard yet that they wait."""

SOONEST, GROWTH = 0.02, 2.0
"""Without calls: the first question after something happened, and how the pauses grow."""


class Place:
    """What an attempt that stands in line is told."""

    __slots__ = ("look_at", "number", "told")

    def __init__(self, number: int, look_at: float, told: float) -> None:
        self.number = number
        self.look_at = look_at  # on the port's clock
        self.told = told  # when its heartbeat began to count


class Ticket:
    __slots__ = ("beat_at", "called", "claim", "event", "look_at", "place")

    def __init__(self, claim: Claim, place: Place, port: Port) -> None:
        self.claim = claim
        self.place = place
        self.event = port.event()
        self.called = False  # it holds, or must find out why it stands in line no more
        self.look_at = place.look_at
        self.beat_at = 0.0


class Ear(Protocol):
    """The attendant's connection."""

    calls: bool
    """Whether anything is ever called."""

    async def attend(self, cells: bool, deadline: float) -> None:
        """Hear also of cells, from now on."""

    async def beat(self, owners: Sequence[bytes], deadline: float) -> bool:
        """Keep these places alive; whether all are still in line."""
        ...

    async def still(self, owners: Sequence[bytes], deadline: float) -> set[bytes]:
        """Which of these are still in line."""
        ...

    async def listen(self, until: float) -> list[str] | None:
        """What was called until then, at the latest; None where nothing is ever called."""
        ...

    def wake(self) -> None:
        """Have `listen` return. From any thread; never waits."""

    def close(self) -> None: ...


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
        self._early: dict[str, None] = {}
        self._watchers: dict[str, set[Callable[[], None]]] = {}  # by what they watch
        self._attendant: Attendant | None = None

    # -- waiters ----------------------------------------------------------------------------------

    def enter(self, claim: Claim, place: Place) -> Ticket:
        ticket = Ticket(claim, place, self.port)
        ticket.beat_at = place.told + min(self.heartbeat, claim.ttl / 3)
        with self.port.mutex():
            self._tickets[place.number] = ticket
        if self._early.pop(str(place.number), 0) is None:
            self._call(ticket)
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

    def heard(self, number: str) -> None:
        ticket = self._tickets.get(int(number))
        if ticket is None:
            while len(self._early) >= EARLY:
                self._early.pop(next(iter(self._early)), None)
            self._early[number] = None
            ticket = self._tickets.get(int(number))
        if ticket is not None:  # it may have entered between the two
            self._early.pop(number, None)
            self._call(ticket)

    def call_owner(self, owners: set[bytes]) -> None:
        for ticket in self._all():
            if ticket.claim.owner.encode() in owners:
                self._call(ticket)

    def _call(self, ticket: Ticket) -> None:
        ticket.called = True
        ticket.event.set()

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


class Attendant:
    def __init__(
        self, room: Room, slowest: float, open_ear: Callable[[float], Awaitable[Ear]]
    ) -> None:
        self.over = True  # until it is started: Ctrl-C may strike before
        self.looks_at = -math.inf  # when it looks by itself next; while it is awake: never late
        self._room = room
        self._port = room.port
        self._slowest = slowest
        self._open_ear = open_ear
        self._calls = False
        self._ear: Ear | None = None
        self.hears = False
        self.asks = False  # nobody calls it, so it asks
        self._nudged = self._port.event()
        self._failures = 0
        self._ask_at = 0.0
        self._pause = SOONEST
        self._known: set[int] = set()
        self._task = self._port.task(self._run, self._farewell, "holdfast-sql")

    def start(self) -> None:
        try:
            self.over = False
            self._task.start()
        except BaseException:  # Ctrl-C, or the interpreter is exiting
            self.over = True  # if it began after all, it ends
            raise

    def wake(self) -> None:
        self._nudged.set()
        ear = self._ear
        if ear is not None:
            ear.wake()

    async def join(self, deadline: float) -> None:
        await self._task.join(deadline)

    async def _farewell(self) -> None:
        """The keeper withdraws whoever still waits; the connection ends with the process."""

    async def _run(self) -> None:
        idle_since = math.inf
        try:
            while not self.over:
                try:
                    await self._turn()
                    self._failures = 0
                except (Trouble, HoldfastError) as error:
                    await self._fail(error)
                except Exception as error:
                    log.exception("the attendant of a line met an unexpected error and goes on")
                    await self._fail(error)
                now = self._port.now()
                idle_since = math.inf if self._room.busy else min(idle_since, now)
                if (self._room.closed or now - idle_since > LINGER) and self._room.dismiss(self):
                    return
        finally:
            self.over = True
            self._drop_ear()

    async def _turn(self) -> None:
        room, port = self._room, self._port
        self._nudged.clear()
        if room.closed:
            return
        if self._ear is None:
            self._ear = await self._open_ear(port.now() + PATIENCE)
            self._calls = self._ear.calls
            self.asks = not self._calls
            self._ask_at = 0.0 if self._calls else math.inf  # what was called before we listened
        if room.watched and not self.hears:
            await self._ear.attend(True, port.now() + PATIENCE)
            self.hears = self._calls
            if self._calls:
                room.tell_watchers()
        await self._beat()
        until = min(await self._ask(), self._look())
        until = min(until, *(t.beat_at for t in room.waiting()), port.now() + room.heartbeat)
        self.looks_at = until
        if not self._nudged.is_set() and self._ear is not None:
            heard = await self._ear.listen(until)
            self.looks_at = -math.inf
            for payload in heard or ():
                if payload.isdigit():
                    room.heard(payload)
                else:
                    room.tell_watchers(payload)
        self.looks_at = -math.inf

    async def _beat(self) -> None:
        room, port = self._room, self._port
        now = port.now()
        waiting = room.waiting()
        if self._ear is None or not any(ticket.beat_at <= now for ticket in waiting):
            return
        owners = [ticket.claim.owner.encode() for ticket in waiting]
        if not await self._ear.beat(owners, now + PATIENCE):
            self._ask_at = 0.0  # somebody is in line no more: find out who
        for ticket in waiting:
            ticket.beat_at = now + min(room.heartbeat, ticket.claim.ttl / 3)

    async def _ask(self) -> float:
        """Who stands in line no more? Asked once where there are calls: when they are first heard,
        and when one was lost; elsewhere again and again."""
        room, port = self._room, self._port
        now = port.now()
        waiting = room.waiting()
        numbers = {ticket.place.number for ticket in waiting}
        if not waiting and not room.watched:
            self._known, self._ask_at = numbers, math.inf
            return math.inf
        if self.asks and (numbers != self._known or self._ask_at == math.inf):
            # Somebody came or went: be attentive.
            self._pause = SOONEST if waiting else 3 * SOONEST
            self._ask_at = min(self._ask_at, now + self._pause)
        self._known = numbers
        if now >= self._ask_at and self._ear is not None:
            owners = {ticket.claim.owner.encode() for ticket in waiting}
            gone = (
                owners - await self._ear.still(sorted(owners), now + PATIENCE) if owners else set()
            )
            if gone:
                self._pause = SOONEST
                room.call_owner(gone)
            else:
                self._pause = min(self._pause * GROWTH, self._slowest)
            if self.asks:
                room.tell_watchers()
            self._ask_at = port.now() + self._pause if self.asks else math.inf
        return self._ask_at

    def _look(self) -> float:
        """Have those look whose time has come; when the next one's does."""
        now = self._port.now()
        soonest = math.inf
        for ticket in self._room.firsts():
            if ticket.look_at <= now:
                ticket.look_at = math.inf
                ticket.event.set()
            else:
                soonest = min(soonest, ticket.look_at)
        return soonest

    async def _fail(self, error: Exception) -> None:
        """Nothing is heard, so everybody asks for themselves."""
        self._drop_ear()
        self._failures += 1
        if self._failures == 3:
            log.warning("calls are not heard, so waiters ask again and again: %s", error)
        self._room.call_all()
        retry_at = self._port.now() + pause(self._failures, self._port.random(), 1.0)
        while not self._room.closed and self._port.now() < retry_at:
            self._nudged.clear()
            await self._nudged.wait(retry_at)

    def _drop_ear(self) -> None:
        self.hears = False
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
