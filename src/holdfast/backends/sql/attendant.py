"""The attendant of a waiting room: a thread or task that lives while somebody of this client waits.

Contract: on a connection of its own (`Ear`) it keeps all places of the client alive by one
statement for a heartbeat; hears calls (PostgreSQL), or asks for all at once who stands in line no
more (MySQL), ever more rarely while nothing happens; and calls whoever's time to look has come.
What this client's own steps have brought about, nobody asks for: `Room.heard`, `Room.passed_on`.

Law 3: a heartbeat refreshes and never creates. One that cannot reach the database calls everybody
to ask for themselves, and tries again after a pause that nobody shortens. Partner: `room.py`.
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

__all__ = ["Attendant", "Ear"]

log = logging.getLogger("holdfast")

LINGER = 5.0
"""How long the attendant stays when nobody waits any more."""

PATIENCE = 1.0
"""How long it gives a server to answer, at most."""

SOONEST, GROWTH = 0.02, 2.0
"""Without calls: the first question after something happened, and how the pauses grow."""


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


class Waiting(Protocol):
    """What the attendant needs to know of a waiter."""

    look_at: float
    beat_at: float

    @property
    def number(self) -> int: ...

    @property
    def owner(self) -> bytes: ...

    @property
    def ttl(self) -> float: ...

    def look(self) -> None:
        """It is time to look."""


class Attended(Protocol):
    """What the attendant needs to know of its room."""

    port: Port
    heartbeat: float
    closed: bool

    @property
    def busy(self) -> bool: ...

    @property
    def watched(self) -> bool: ...

    def waiting(self) -> Sequence[Waiting]: ...

    def firsts(self) -> Sequence[Waiting]: ...

    def heard(self, call: str) -> None: ...

    def call_owner(self, owners: set[bytes]) -> None: ...

    def call_all(self) -> None: ...

    def tell_watchers(self, what: str | None = None) -> None: ...

    def dismiss(self, attendant: Attendant) -> bool: ...


class Attendant:
    def __init__(
        self, room: Attended, slowest: float, open_ear: Callable[[float], Awaitable[Ear]]
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
        self._attentive = False
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

    def be_attentive(self) -> None:
        """Without calls: ask soon, something may happen."""
        self._attentive = True
        self.wake()

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
        ear = self._ear
        if ear is None:
            ear = self._ear = await self._open_ear(port.now() + PATIENCE)
            self._calls = ear.calls
            self.asks = not self._calls
            self._ask_at = 0.0 if self._calls else math.inf  # what was called before we listened
        if room.watched and not self.hears:
            await ear.attend(True, port.now() + PATIENCE)
            self.hears = self._calls
            if self._calls:
                room.tell_watchers()
        await self._beat(ear)
        until = min(await self._ask(ear), self._look())
        until = min(until, *(t.beat_at for t in room.waiting()), port.now() + room.heartbeat)
        self.looks_at = until
        if not self._nudged.is_set():
            heard = await ear.listen(until)
            self.looks_at = -math.inf
            for payload in heard or ():
                if payload.partition(" ")[0].isdigit():
                    room.heard(payload)
                else:
                    room.tell_watchers(payload)
        self.looks_at = -math.inf

    async def _beat(self, ear: Ear) -> None:
        room, port = self._room, self._port
        now = port.now()
        waiting = room.waiting()
        if not any(ticket.beat_at <= now for ticket in waiting):
            return
        owners = [ticket.owner for ticket in waiting]
        if not await ear.beat(owners, now + PATIENCE):
            self._ask_at = 0.0  # somebody is in line no more: find out who
        elif self.asks and self._ask_at <= now + self._pause:
            self._ask_at = now + self._pause  # all are, so that need not be asked
        for ticket in waiting:
            ticket.beat_at = now + min(room.heartbeat, ticket.ttl / 3)

    async def _ask(self, ear: Ear) -> float:
        """Who stands in line no more? Asked once where there are calls: when they are first heard,
        and when one was lost; elsewhere again and again."""
        room, port = self._room, self._port
        now = port.now()
        waiting = room.waiting()
        numbers = {ticket.number for ticket in waiting}
        if not waiting and not room.watched:
            self._known, self._ask_at = numbers, math.inf
            return math.inf
        # Who comes to stand behind another one of ours changes nothing; and what one of ours holds
        # is let go by a step of ours, which tells of itself.
        firsts = {ticket.number for ticket in room.firsts()}
        attentive, self._attentive = self._attentive or bool(firsts - self._known), False
        if self.asks and (attentive or self._ask_at == math.inf):
            self._pause = SOONEST if waiting else 3 * SOONEST
            self._ask_at = min(self._ask_at, now + self._pause)
        self._known = numbers | firsts
        if now >= self._ask_at:
            owners = {ticket.owner for ticket in waiting}
            gone = owners - await ear.still(sorted(owners), now + PATIENCE) if owners else owners
            room.call_owner(gone)
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
                ticket.look()
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
