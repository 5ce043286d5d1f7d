"""The attendant of the waiting room of a SQL database: on a connection of its own.

Contract: it keeps all places of the client alive by one statement for a heartbeat; hears calls
(PostgreSQL), or asks for all at once who stands in line no more (MySQL), ever more rarely while
nothing happens; and calls whoever's time to look has come. What this client's own steps have
brought about, nobody asks for: `Room.heard`, `Room.passed_on`. How it comes and goes:
`backends/attendance.py`.

Law 3: a heartbeat refreshes and never creates. Partner: `room.py`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.backends import attendance
from holdfast.backends.attendance import PATIENCE
from holdfast.backends.sql.room import Room
from holdfast.backends.sql.session import Trouble
from holdfast.errors import HoldfastError

__all__ = ["Attendant", "Ear"]

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


class Attendant(attendance.Attendant[Room, Ear]):
    trouble = (Trouble, HoldfastError)

    def __init__(
        self, room: Room, slowest: float, open_ear: Callable[[float], Awaitable[Ear]]
    ) -> None:
        super().__init__(room, "holdfast-sql")
        self._slowest = slowest
        self._open_ear = open_ear
        self._attends = False  # to cells
        self._ask_at = 0.0
        self._pause = SOONEST
        self._known: set[int] = set()

    def hears(self, what: str) -> bool:
        ear = self._ear
        return self._attends and ear is not None and ear.calls

    async def _open(self, deadline: float) -> Ear:
        return await self._open_ear(deadline)

    async def _begun(self, ear: Ear) -> None:
        self._room.asks = not ear.calls
        self._ask_at = 0.0 if ear.calls else math.inf  # what was called before we listened

    async def _serve(self, ear: Ear) -> None:
        if self._room.watched and not self._attends:
            await ear.attend(True, self._port.now() + PATIENCE)
            self._attends = True
            if ear.calls:
                self._room.tell_watchers()
        await self._beat(ear)
        await self._ask(ear)

    def _due(self) -> float:
        beats = (ticket.beat_at for ticket in self._room.waiting())
        return min(self._ask_at, self._look(), *beats)

    async def _listen(self, ear: Ear, until: float) -> None:
        for payload in await ear.listen(until) or ():
            if payload.partition(" ")[0].isdigit():
                self._room.heard(payload)
            else:
                self._room.tell_watchers(payload)

    def _deaf(self) -> None:
        self._attends = False

    async def _beat(self, ear: Ear) -> None:
        room, port = self._room, self._port
        now = port.now()
        waiting = room.waiting()
        if not any(ticket.beat_at <= now for ticket in waiting):
            return
        owners = [ticket.owner for ticket in waiting]
        if not await ear.beat(owners, now + PATIENCE):
            self._ask_at = 0.0  # somebody is in line no more: find out who
        elif room.asks and self._ask_at <= now + self._pause:
            self._ask_at = now + self._pause  # all are, so that need not be asked
        for ticket in waiting:
            ticket.beat_at = now + min(room.heartbeat, ticket.ttl / 3)

    async def _ask(self, ear: Ear) -> None:
        """Who stands in line no more? Asked once where there are calls: when they are first heard,
        and when one was lost; elsewhere again and again."""
        room, port = self._room, self._port
        now = port.now()
        waiting = room.waiting()
        numbers = {ticket.number for ticket in waiting}
        if not waiting and not room.watched:
            self._known, self._ask_at = numbers, math.inf
            return
        # Who comes to stand behind another one of ours changes nothing; and what one of ours holds
        # is let go by a step of ours, which tells of itself.
        firsts = {ticket.number for ticket in room.firsts()}
        attentive = bool(firsts - self._known)
        if room.attentive:  # else it may be set just now, and is for the next turn
            room.attentive, attentive = False, True
        if room.asks and (attentive or self._ask_at == math.inf):
            self._pause = SOONEST if waiting else 3 * SOONEST
            self._ask_at = min(self._ask_at, now + self._pause)
        self._known = numbers | firsts
        if now >= self._ask_at:
            owners = {ticket.owner for ticket in waiting}
            gone = owners - await ear.still(sorted(owners), now + PATIENCE) if owners else owners
            room.call_owner(gone)
            self._pause = min(self._pause * GROWTH, self._slowest)
            if room.asks:
                room.tell_watchers()
            self._ask_at = port.now() + self._pause if room.asks else math.inf

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
