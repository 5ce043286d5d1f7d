"""The waiting room: whoever of this client stands in line, and how their turn reaches them.

Contract: one listener (a thread, or a task) for a client, which hears the store's calls on the
client's own channel and sends one heartbeat for each line, however many wait in it. It is asked in
the name of the client's first waiter there: lines are served in order, so as long as that one
waits, no call to the others can have been lost.

Laws kept here: 1 (in `calls.py`), 3 (looking refreshes, never creates), 6 (one message; waiting
costs the heartbeat).
Hazards: a call may come before the answer that says "in line" (it is kept in `_early`), twice, late
or for nobody. A listener that cannot reach the store calls everybody to ask for themselves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdfast.backends.redis.calls import Anchors, Called, Line, Ticket
from holdfast.backends.redis.transport import Ear, Hearing
from holdfast.backends.redis.wire import NoAnswer
from holdfast.core.port import Port, Task
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import Claim, Grant, Unknown

log = logging.getLogger("holdfast")

__all__ = ["DEAF", "Room"]

DEAF, HEARS, SOMEWHERE = "0", "1", "3"
"""What a client says about its listening: not yet; yes; yes, but PUBLISH cannot count it."""

LINGER = 5.0
"""How long the listener stays when nobody waits any more."""

EARLY = 1000
"""So many calls are kept for waiters that have not heard yet that they wait."""

PATIENCE = 1.0
"""How long the listener gives a server to answer, at most."""


class Looking(Protocol):
    """How the room asks the store about a waiter."""

    async def __call__(
        self, claim: Claim, hearing: str, deadline: float
    ) -> Grant | float | Unknown | None:
        """Its grant; or when to look again at the latest (inf: at the heartbeat); None: it has no
        place there any more."""
        ...


class Room:
    def __init__(
        self,
        port: Port,
        channel: str,
        heartbeat: float,
        counted: bool,
        look: Looking,
        open_ear: Callable[[Hearing, float], Coroutine[Any, Any, Ear]],
    ) -> None:
        self._port = port
        self._channel = channel
        self._heartbeat = heartbeat
        self._hears = HEARS if counted else SOMEWHERE
        self._look = look
        self._open_ear = open_ear
        self.hearing = DEAF
        self.anchors = Anchors()
        self._tickets: dict[str, Ticket] = {}
        self._lines: dict[str, Line] = {}
        self._early: dict[str, Called] = {}
        self._cells: dict[str, set[Callable[[], None]]] = {}
        self.tidy: Callable[[float], None] | None = None  # done once a heartbeat at least
        self._heard: set[str] = set()  # the cells' channels that are subscribed to
        self._ear: Ear | None = None
        self._task: Task | None = None
        self._nudged = port.event()
        self._running = False
        self._looks_at = math.inf  # when the listener looks by itself next
        self._failures = 0
        self._closed = False

    # -- called by waiters ------------------------------------------------------------------------

    def enter(self, claim: Claim, number: int, look_at: float, sent: float) -> Ticket:
        """Somebody waits from now on; `look_at` is when its turn may come without a call."""
        ticket = Ticket(claim, number, self._port.event())
        line = self._lines.get(claim.name)
        if line is None:
            line = Line(max(0.05, min(self._heartbeat, claim.ttl / 3)))
            line = self._lines.setdefault(claim.name, line)
        line.tickets[number, claim.owner] = ticket
        self._lines[claim.name] = line  # another thread may have dropped it as empty
        self._tickets[claim.owner] = ticket
        if self._closed:  # looked at after entering, so close() either sees us or stops us
            ticket.event.set()
        called = self._early.pop(claim.owner, None)
        if called is not None:
            self._deliver(ticket, called)
        beat_at = sent + line.interval
        if self.hearing == DEAF:
            beat_at = sent  # what was called before we listen is heard of by looking
        self._beat_by(line, min(beat_at, look_at))
        self._listen()
        return ticket

    def leave(self, claim: Claim) -> None:
        """It waits no longer; nothing if it did not. Never waits."""
        ticket = self._tickets.pop(claim.owner, None)
        line = self._lines.get(claim.name)
        if ticket is not None and line is not None:
            line.tickets.pop((ticket.number, claim.owner), None)
            if not line.tickets:
                self._lines.pop(claim.name, None)
                if line.tickets:  # somebody came just now
                    self._lines[claim.name] = line
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
        if called is None:
            return None
        now = self._port.now()
        until = self.anchors.until(called, now)
        if until is None or until <= now:
            return None
        return Grant(ticket.claim, until, called.fence or None, confirm_by=now + (until - now) / 3)

    def watch(self, channel: str, call: Callable[[], None]) -> None:
        """`call` at every message on this channel, once it is listened to, and when it cannot be.
        Called from the listener's thread, or from this one; it must not wait."""
        watchers = self._cells.setdefault(channel, set())
        watchers.add(call)
        self._cells[channel] = watchers
        if channel in self._heard and self.hearing != DEAF:
            call()
        self._listen()
        self._nudge()

    def unwatch(self, channel: str, call: Callable[[], None]) -> None:
        watchers = self._cells.get(channel)
        if watchers is not None:
            watchers.discard(call)
            if not watchers:
                self._cells.pop(channel, None)
                if watchers:
                    self._cells[channel] = watchers
        self._nudge()

    def close(self) -> None:
        self._closed = True
        for ticket in list(self._tickets.values()):
            ticket.event.set()
        self._nudge()

    async def closed(self, deadline: float) -> None:
        if self._task is not None:
            await self._task.join(deadline)

    # -- the calls --------------------------------------------------------------------------------

    def _hear(self, channel: bytes, payload: bytes) -> None:
        ear = self._ear
        name = channel.decode()
        if name != self._channel:
            for call in list(self._cells.get(name, ())):
                call()
            return
        owner, fence, clock, span = payload.decode().split(" ")
        called = Called(int(fence), int(clock), int(span), ear.run_id if ear else "")
        ticket = self._tickets.get(owner)
        if ticket is not None:
            self._deliver(ticket, called)
            return
        while len(self._early) >= EARLY:
            self._early.pop(next(iter(self._early)), None)
        self._early[owner] = called
        ticket = self._tickets.get(owner)  # it may have entered between the two
        if ticket is not None and self._early.pop(owner, None) is not None:
            self._deliver(ticket, called)

    def _deliver(self, ticket: Ticket, called: Called) -> None:
        ticket.called = called
        ticket.event.set()

    # -- the listener -----------------------------------------------------------------------------

    def _beat_by(self, line: Line, moment: float) -> None:
        if moment < line.beat_at:
            line.beat_at = moment
            if moment < self._looks_at:
                self._nudge()

    def _nudge(self) -> None:
        self._nudged.set()
        ear = self._ear
        if ear is not None:
            ear.wake()

    def _listen(self) -> None:
        """See to it that somebody listens. Called after the waiter is in `_lines`: the listener
        says that it leaves before it looks there for the last time, so one of the two notices."""
        if self._running or self._closed:
            return
        with self._port.mutex():
            if not self._running:
                self._running = True
                self._task = self._port.task(self._run, self._farewell, "holdfast-redis")
                self._task.start()

    async def _farewell(self) -> None:
        """The keeper withdraws whoever still waits; the connection ends with the process."""

    async def _run(self) -> None:
        idle_since = math.inf
        try:
            while True:
                try:
                    await self._turn()
                except (NoAnswer, HoldfastError) as error:
                    await self._fail(error)
                except Exception as error:
                    log.exception("the listener met an unexpected error and goes on")
                    await self._fail(error)
                now = self._port.now()
                if self._lines or self._cells:
                    idle_since = math.inf
                elif idle_since == math.inf:
                    idle_since = now
                if (self._closed or now - idle_since > LINGER) and self._leaves():
                    return
        finally:
            self._running = False
            self._drop_ear()

    def _leaves(self) -> bool:
        """Whether the listener may end; it says so before it looks for the last time."""
        self._running = False
        if self._closed or not (self._lines or self._cells):
            return True
        with self._port.mutex():
            if self._running:  # somebody has started another one
                return True
            self._running = True
        return False

    async def _turn(self) -> None:
        self._nudged.clear()
        if self._closed:
            return
        if self._ear is None:
            await self._begin()
        if self.tidy is not None:
            self.tidy(self._port.now())
        await self._hear_cells()
        await self._beat()
        moment = self._port.now() + self._heartbeat
        self._looks_at = min((line.beat_at for line in list(self._lines.values())), default=moment)
        if self._ear is not None and not self._nudged.is_set():
            await self._ear.listen(min(self._looks_at, moment))
        self._looks_at = math.inf

    async def _begin(self) -> None:
        limit = self._port.now() + PATIENCE
        ear = await self._open_ear(self._hear, limit)
        self._ear = ear  # before it hears anything: a call is dated by the ear that heard it
        await ear.subscribe([self._channel], limit)
        self.hearing = self._hears
        self._failures = 0
        # Whoever came before now waits for a call that may have been made already.
        for line in list(self._lines.values()):
            line.beat_at = 0.0

    async def _hear_cells(self) -> None:
        wanted = set(self._cells)
        new, old = wanted - self._heard, self._heard - wanted
        limit = self._port.now() + PATIENCE
        if self._ear is not None and new:
            await self._ear.subscribe(sorted(new), limit)
            self._heard |= new
            for channel in new:
                for call in list(self._cells.get(channel, ())):
                    call()
        if self._ear is not None and old:
            self._heard -= old
            await self._ear.unsubscribe(sorted(old), limit)

    async def _beat(self) -> None:
        """One look for each line that is due; more where a call was lost."""
        port = self._port
        for line in list(self._lines.values()):
            while line.beat_at <= port.now():
                ticket = line.first()
                if ticket is None:
                    line.beat_at = math.inf
                    break
                sent = port.now()
                limit = sent + min(PATIENCE, max(line.interval, 0.2))
                try:
                    found = await self._look(ticket.claim, self.hearing, limit)
                except Unavailable as error:
                    found = Unknown(str(error))
                if isinstance(found, Unknown):
                    self._missed(line, sent)
                    break
                line.failing_since = math.inf
                if isinstance(found, float):
                    line.beat_at = min(sent + line.interval, found)
                    break
                # Granted without a call that reached us, or dropped: then the next one, too.
                if isinstance(found, Grant):
                    ticket.grant = found
                line.tickets.pop((ticket.number, ticket.claim.owner), None)
                ticket.event.set()

    def _missed(self, line: Line, sent: float) -> None:
        """No answer: again soon; and after a heartbeat's time everybody asks for themselves."""
        now = self._port.now()
        line.failing_since = min(line.failing_since, sent)
        line.beat_at = now + line.interval / 4
        if now - line.failing_since >= line.interval:
            line.failing_since = math.inf
            for ticket in list(line.tickets.values()):
                ticket.event.set()

    async def _fail(self, error: Exception) -> None:
        """The subscription broke or could not be made: nothing is heard, so everybody asks."""
        self._drop_ear()
        self._failures += 1
        if self._failures == 3:
            log.warning(
                "calls from Redis cannot be heard, so waiters ask again and again: %s", error
            )
        for ticket in list(self._tickets.values()):
            ticket.event.set()
        for watchers in list(self._cells.values()):
            for call in list(watchers):
                call()
        self._nudged.clear()
        if not self._closed:
            pause = min(1.0, 0.05 * 2 ** min(self._failures, 5)) * (0.5 + self._port.random())
            await self._nudged.wait(self._port.now() + pause)

    def _drop_ear(self) -> None:
        self.hearing = DEAF
        self._heard.clear()
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
