"""The listener: one thread, or task, of a client that hears calls and sends heartbeats.

Contract: one heartbeat for each line, however many wait in it, all that are due in one batch. It is
asked in the name of the client's first waiter there: lines are served in order, so as long as that
one waits, no call to the others can have been lost. How it comes and goes, `backends/attendance.py`
says; what it has (the subscription, what it says about hearing) ends with it.

Laws kept here: 3 (looking refreshes, never creates), 6 (nobody polls).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from holdfast.backends.attendance import PATIENCE, Attendant
from holdfast.backends.redis.calls import Line, Ticket
from holdfast.backends.redis.transport import Ear, Hearing
from holdfast.backends.redis.waiting import DEAF, Room
from holdfast.backends.redis.wire import NoAnswer, NotSent
from holdfast.errors import HoldfastError
from holdfast.types import Claim, Grant, Unknown

__all__ = ["Listener", "Seen", "ask_nobody"]

HEARS, SOMEWHERE = "1", "3"
"""What a client says about its listening: PUBLISH counts it, or cannot (in a cluster)."""

Seen = Grant | float | Unknown | None
"""What a look finds: its grant; or when to look again at the latest (inf: at the heartbeat); None:
it has no place there any more."""


class Looking(Protocol):
    """How the listener asks the store about waiters."""

    async def __call__(
        self, claims: Sequence[Claim], hearing: str, deadline: float
    ) -> list[Seen]: ...


async def ask_nobody(claims: Sequence[Claim], hearing: str, deadline: float) -> list[Seen]:
    """Where nobody stands in a line of the store."""
    return []


class Listener(Attendant[Room, Ear]):
    trouble = (NoAnswer, NotSent, HoldfastError)

    def __init__(
        self,
        room: Room,
        counted: bool,
        look: Looking,
        open_ear: Callable[[Hearing, float], Coroutine[Any, Any, Ear]],
    ) -> None:
        super().__init__(room, "holdfast-redis")
        self._hears = HEARS if counted else SOMEWHERE
        self._look = look
        self._open_ear = open_ear
        self._subscribed: set[str] = set()  # the channels that are watched

    def hears(self, what: str) -> bool:
        return what in self._subscribed

    async def _open(self, deadline: float) -> Ear:
        return await self._open_ear(self._hear, deadline)

    async def _begun(self, ear: Ear) -> None:
        await ear.subscribe([self._room.channel], self._port.now() + PATIENCE)
        self._room.hearing = self._hears
        # Whoever came before now waits for a call that may have been made already.
        for line in list(self._room.lines.values()):
            self._room.look_by(line, 0.0)

    def _hear(self, channel: bytes, payload: bytes) -> None:
        ear = self._ear
        self._room.heard(channel, payload, ear.run_id if ear is not None else "")

    async def _serve(self, ear: Ear) -> None:
        if self._room.tidy is not None:
            self._room.tidy()
        await self._subscribe(ear)
        await self._beat()

    def _due(self) -> float:
        return self._room.next_beat()

    async def _listen(self, ear: Ear, until: float) -> None:
        await ear.listen(until)

    async def _subscribe(self, ear: Ear) -> None:
        """To the channels that somebody watches, and to no others."""
        room = self._room
        wanted = set(room.watched)
        new, old = wanted - self._subscribed, self._subscribed - wanted
        limit = self._port.now() + PATIENCE
        if new:
            await ear.subscribe(sorted(new), limit)
            self._subscribed |= new
            for channel in new:
                room.tell_watchers(channel)
        if old:
            self._subscribed -= old
            await ear.unsubscribe(sorted(old), limit)

    async def _beat(self) -> None:
        """One look for each line that is due; more where a call was lost."""
        port, room = self._port, self._room
        while due := room.firsts(port.now()):
            sent = port.now()
            claims = [ticket.claim for _, ticket in due]
            found = await self._look(claims, room.hearing, sent + PATIENCE)
            for (line, ticket), seen in zip(due, found, strict=True):
                self._answered(line, ticket, seen, sent)

    def _answered(self, line: Line, ticket: Ticket, seen: Seen, sent: float) -> None:
        if isinstance(seen, Unknown):
            # Again soon; and after a heartbeat's time everybody asks for themselves.
            now = self._port.now()
            line.failing_since = min(line.failing_since, sent)
            self._room.look_by(line, now + line.interval / 4)
            if now - line.failing_since >= line.interval:
                line.failing_since = math.inf
                self._room.call_line(line)
            return
        line.failing_since = math.inf
        if seen is None or isinstance(seen, Grant):
            self._room.answered(line, ticket, seen)
        else:
            self._room.look_by(line, min(sent + line.interval, seen))

    def _deaf(self) -> None:
        if self._room.current(self):
            self._room.hearing = DEAF
        self._subscribed.clear()
