"""A waiting room, and its attendant: one thread or task that hears and asks for all of a client.

Contract: who waits has a ticket and sleeps on it until it is called. The room sees to it that there
is an attendant while somebody waits or watches, and one at a time. The attendant has a connection
of its own, the ear; it does what is due, and then listens. It goes when nobody has waited for a
while. One that cannot reach the store wakes everybody, to ask for themselves, and tries again after
a pause that nobody shortens.

Law 6: waiting costs what the attendant asks, and it asks for all at once. Hazards: a call may come
before the answer that says "in line" (it is kept in `_early`), twice, late or for nobody. What
entering, leaving and the attendant's end change together, they change under the port's mutex:
between any two of those lines another thread may enter or leave.
Partners: `redis/waiting.py` and `redis/listener.py`; `sql/room.py` and `sql/attendant.py`.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from holdfast.core.backoff import pause
from holdfast.core.port import Event, Port, why_not
from holdfast.errors import Unavailable
from holdfast.types import Cell

__all__ = ["PATIENCE", "Attendant", "Room"]

log = logging.getLogger("holdfast")

EARLY = 1000
"""So many calls are kept for waiters that have not heard yet that they wait."""

PATIENCE = 1.0
"""How long a server is given to answer what is asked while waiting."""

SLOWEST = 10.0
"""But not longer than that: a connection that is dead is not told apart from a slow one."""

HASTE = 0.2
"""At a deadline that has come, a server is given so long to say how it is."""

ALONE = 0.25
"""How often who waits asks for itself where no thread can be started for an attendant, or as long
as it hears nothing; it tries to hear as often."""

LINGER = 5.0
"""How long an attendant stays when nobody waits any more."""


class Waiter(Protocol):
    """A ticket."""

    @property
    def event(self) -> Event: ...

    def call(self, said: Any, /) -> None: ...


class Hired(Protocol):
    """What a room needs to know of its attendant."""

    over: bool
    """Whether it does not attend: not yet, or not any more."""

    looks_at: float
    """When it looks by itself next, at the latest; -inf: it is about to find out."""

    def start(self) -> None: ...

    def wake(self) -> None: ...

    def hears(self, what: str) -> bool: ...

    async def join(self, deadline: float) -> None: ...


Key = TypeVar("Key")
Said = TypeVar("Said")
Ticket = TypeVar("Ticket", bound=Waiter)


class Room(Generic[Key, Ticket, Said]):
    def __init__(self, port: Port, heartbeat: float, hire: Callable[[Any], Hired]) -> None:
        self.port = port
        self.heartbeat = heartbeat
        self.closed = False
        self.watched: dict[str, set[Callable[[], None]]] = {}  # what, and who is told
        self._tickets: dict[Key, Ticket] = {}
        self._early: dict[Key, Said] = {}
        self._hire = hire  # an attendant for a room; started here
        self._attendant: Hired | None = None
        self._alone_until = -math.inf  # no attendant was to be had just now

    @property
    def busy(self) -> bool:
        return bool(self._tickets or self.watched)

    def tickets(self) -> list[Ticket]:
        with self.port.mutex():
            return list(self._tickets.values())

    def watch(self, what: str, call: Callable[[], None]) -> None:
        """`call` when this has changed, or may have, as when nothing is heard: from the attendant,
        and it must not wait."""
        with self.port.mutex():
            self.watched.setdefault(what, set()).add(call)
        self.attend(at_once=True)

    def unwatch(self, what: str, call: Callable[[], None]) -> None:
        with self.port.mutex():
            watchers = self.watched.get(what)
            if watchers is not None:
                watchers.discard(call)
                if not watchers:
                    del self.watched[what]

    def hears(self, what: str) -> bool:
        """Whether what happens to this from now on is heard: who begins to watch is not told so."""
        attendant = self._attendant
        return attendant is not None and not attendant.over and attendant.hears(what)

    def tell_watchers(self, what: str | None = None) -> None:
        """Of this, or of everything."""
        with self.port.mutex():
            groups = self.watched.values() if what is None else [self.watched.get(what, set())]
            calls = [call for group in groups for call in group]
        for call in calls:
            call()

    async def changed(
        self,
        what: str,
        version: int,
        read: Callable[[float], Awaitable[tuple[Cell | None, float]]],
        deadline: float,
        patience: float = PATIENCE,
    ) -> Cell | None:
        """A cell when its version is another, or as it is at the deadline; None: all is closed, and
        nothing is asked any more. `read` says also when it expires by itself."""
        port, event = self.port, self.port.event()
        try:
            try:
                self.watch(what, event.set)  # first, and read then: so no change is missed
                while not self.closed:
                    now = port.now()
                    try:
                        cell, expires = await read(min(max(deadline, now + HASTE), now + patience))
                    except Unavailable:
                        if port.now() >= deadline:
                            raise
                        patience = min(2 * patience, SLOWEST)  # perhaps it is only slow
                        await event.wait(min(deadline, port.now() + PATIENCE / 4))
                        event.clear()
                        continue
                    now = port.now()
                    if (cell.version if cell else 0) != version or now >= deadline:
                        return cell
                    self.attend()
                    limit = self.heard_until(deadline)
                    await event.wait(min(limit, max(expires, now + 0.001)))
                    event.clear()
                return None
            finally:
                self.unwatch(what, event.set)
        finally:
            self.unwatch(what, event.set)  # Ctrl-C may have struck there

    def call_all(self) -> None:
        """Nothing is heard: everybody asks for themselves."""
        self._wake_all()

    def _wake_all(self) -> None:
        for ticket in self.tickets():
            ticket.event.set()
        self.tell_watchers()

    def close(self) -> None:
        self.closed = True
        self._wake_all()
        self._nudge()

    async def emptied(self, deadline: float) -> None:
        if self._attendant is not None:
            await self._attendant.join(deadline)

    # -- calls ------------------------------------------------------------------------------------

    def _call_early(self, key: Key, ticket: Ticket) -> None:
        """For a ticket that is in `_tickets` now."""
        called = self._early.pop(key, None)
        if called is not None:
            ticket.call(called)

    def _entered(self, ticket: Ticket, look_at: float, at_once: bool = False) -> None:
        """The end of entering: somebody looks by then."""
        self.attend(look_at, at_once)
        if self.closed:  # looked at after entering: so close() wakes us, or we see it
            ticket.event.set()

    def _call(self, key: Key, said: Said) -> None:
        """From the attendant, or whoever knows it."""
        ticket = self._tickets.get(key)
        if ticket is None:
            while len(self._early) >= EARLY:
                self._early.pop(next(iter(self._early)), None)
            self._early[key] = said
            ticket = self._tickets.get(key)  # it may have entered between the two
        if ticket is not None:
            self._early.pop(key, None)
            ticket.call(said)

    # -- the attendant ----------------------------------------------------------------------------

    def attend(self, look_at: float = math.inf, at_once: bool = False) -> None:
        """See to it that somebody attends, and looks by then. Whoever goes on waiting or watching
        asks for this: who attended may have been interrupted."""
        attendant = self._attendant
        if attendant is None or attendant.over:
            attendant = self._begin()
        if attendant is not None and (at_once or look_at < attendant.looks_at):
            attendant.wake()

    def _nudge(self) -> None:
        """Whoever attends looks now."""
        attendant = self._attendant
        if attendant is not None:
            attendant.wake()

    def _begin(self) -> Hired | None:
        with self.port.mutex():
            attendant = self._attendant
            if self.closed or (attendant is not None and not attendant.over):
                return attendant
            if self.port.now() < self._alone_until:  # each try wakes everybody
                return attendant
            attendant = self._attendant = self._hire(self)
            if why_not(attendant.start) is not None:
                self._alone_until = self.port.now() + ALONE
            return attendant

    def heard_until(self, deadline: float) -> float:
        """How long a call may be waited for: not long if nobody hears it."""
        attendant = self._attendant
        if attendant is not None and not attendant.over:
            return deadline  # when it goes, it wakes who waits
        return min(deadline, self.port.now() + min(ALONE, self.heartbeat))

    def dismiss(self, attendant: Hired) -> bool:
        """Whether this one may go: then it is over, and who enters now has another one hired."""
        with self.port.mutex():
            if not self.closed and self.busy:
                return False
            attendant.over = True
            return True

    def current(self, attendant: Hired) -> bool:
        return self._attendant is attendant


class Closable(Protocol):
    def wake(self) -> None:
        """Have `listen` return. From any thread; never waits."""

    def close(self) -> None: ...


Ear = TypeVar("Ear", bound=Closable)
Attended = TypeVar("Attended", bound=Room[Any, Any, Any])


class Attendant(ABC, Generic[Attended, Ear]):
    trouble: ClassVar[tuple[type[Exception], ...]]
    """What may well happen when the store is asked."""

    def __init__(self, room: Attended, name: str) -> None:
        self.over = True  # until it is started: Ctrl-C may strike before
        self.looks_at = -math.inf
        self._port = room.port
        self._ear: Ear | None = None
        self._room = room
        self._nudged = self._port.event()
        self._failures = 0
        self._name = name
        self._task = self._port.task(self._run, self._farewell, name)

    @abstractmethod
    async def _open(self, deadline: float) -> Ear: ...

    @abstractmethod
    async def _begun(self, ear: Ear) -> None:
        """The ear is open: nothing was heard before."""

    @abstractmethod
    async def _serve(self, ear: Ear) -> None:
        """Ask what is due."""

    @abstractmethod
    def _due(self) -> float:
        """When to serve again, at the latest."""

    @abstractmethod
    async def _listen(self, ear: Ear, until: float) -> None: ...

    @abstractmethod
    def hears(self, what: str) -> bool: ...

    def _deaf(self) -> None:
        """The ear is about to be closed."""

    # -- its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self.over = False
            self._task.start()
        except BaseException:  # Ctrl-C, or the interpreter is exiting
            self.over = True  # if it began after all, it ends
            self.wake()
            self._room.call_all()  # whoever relied on it has another one hired
            raise

    def wake(self) -> None:
        """Serve now; from any thread, never blocks."""
        self._nudged.set()
        ear = self._ear
        if ear is not None:
            ear.wake()

    async def join(self, deadline: float) -> None:
        await self._task.join(deadline)

    async def _farewell(self) -> None:
        """The keeper withdraws whoever still waits; the connection ends with the process."""

    async def _run(self) -> None:
        room = self._room
        idle_since = math.inf
        try:
            while not self.over:
                try:
                    await self._turn()
                    self._failures = 0
                except self.trouble as error:
                    await self._fail(error)
                except Exception as error:
                    log.exception("%s met an unexpected error and goes on", self._name)
                    await self._fail(error)
                now = self._port.now()
                idle_since = math.inf if room.busy else min(idle_since, now)
                if (room.closed or now - idle_since > LINGER) and room.dismiss(self):
                    return
        finally:
            self.over = True
            self._drop_ear()
            if room.busy and room.current(self):
                room.call_all()  # its task was cancelled: as above

    async def _turn(self) -> None:
        port, room = self._port, self._room
        self._nudged.clear()
        if room.closed or self.over:
            return
        ear = self._ear
        if ear is None:
            ear = self._ear = await self._open(port.now() + PATIENCE)
            await self._begun(ear)
        await self._serve(ear)
        self.looks_at = math.inf  # who comes from here on wakes us, until we know our time
        self.looks_at = until = min(self._due(), port.now() + room.heartbeat)
        try:
            if not self._nudged.is_set():
                await self._listen(ear, until)
        finally:
            self.looks_at = -math.inf

    async def _fail(self, error: Exception) -> None:
        """Nothing is heard, so everybody asks."""
        port, room = self._port, self._room
        self._drop_ear()
        self._failures += 1
        if self._failures == 3:
            log.warning("calls are not heard, so waiters ask again and again: %s", error)
        room.call_all()
        retry_at = port.now() + pause(self._failures, port.random(), math.inf, longest=ALONE)
        while not room.closed and port.now() < retry_at:
            self._nudged.clear()
            await self._nudged.wait(retry_at)

    def _drop_ear(self) -> None:
        self._deaf()
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
