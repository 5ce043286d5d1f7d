"""The listener: one thread, or task, of a client that hears calls and sends heartbeats.

Contract: one heartbeat for each line, however many wait in it, all that are due in one batch. It is
asked in the name of the client's first waiter there: lines are served in order, so as long as that
one waits, no call to the others can have been lost. A listener lives until nobody waits any more;
what it has (the subscription, what it says about hearing) ends with it.

Laws kept here: 3 (looking refreshes, never creates), 6 (nobody polls). A listener that cannot reach
the store calls everybody to ask for themselves, and tries again after a pause that nobody shortens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from holdfast.backends.redis.calls import Line, Ticket
from holdfast.backends.redis.transport import Ear, Hearing
from holdfast.backends.redis.waiting import DEAF, Room
from holdfast.backends.redis.wire import NoAnswer, NotSent
from holdfast.core.backoff import pause
from holdfast.errors import HoldfastError
from holdfast.types import Claim, Grant, Unknown

__all__ = ["Listener", "Seen"]

log = logging.getLogger("holdfast")

HEARS, SOMEWHERE = "1", "3"
"""What a client says about its listening: PUBLISH counts it, or cannot (in a cluster)."""

LINGER = 5.0
"""How long the listener stays when nobody waits any more."""

PATIENCE = 1.0
"""How long it gives a server to answer, at most."""

Seen = Grant | float | Unknown | None
"""What a look finds: its grant; or when to look again at the latest (inf: at the heartbeat); None:
it has no place there any more."""


class Looking(Protocol):
    """How the listener asks the store about waiters."""

    async def __call__(
        self, claims: Sequence[Claim], hearing: str, deadline: float
    ) -> list[Seen]: ...


class Listener:
    def __init__(
        self,
        room: Room,
        counted: bool,
        look: Looking,
        open_ear: Callable[[Hearing, float], Coroutine[Any, Any, Ear]],
    ) -> None:
        self.over = True  # until it is started: Ctrl-C may strike before
        self._room = room
        self._port = room.port
        self._hears = HEARS if counted else SOMEWHERE
        self._look = look
        self._open_ear = open_ear
        self._ear: Ear | None = None
        self._subscribed: set[str] = set()  # the channels that are watched
        self._nudged = self._port.event()
        self._failures = 0
        self._task = self._port.task(self._run, self._farewell, "holdfast-redis")

    def start(self) -> None:
        try:
            self.over = False
            self._task.start()
        except BaseException:  # Ctrl-C, or the interpreter is exiting
            self.over = True  # if it began after all, it ends
            raise

    def wake(self) -> None:
        """Look now; from any thread, never blocks."""
        self._nudged.set()
        ear = self._ear
        if ear is not None:
            ear.wake()

    def hears(self, channel: str) -> bool:
        return channel in self._subscribed

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
                except (NotSent, NoAnswer, HoldfastError) as error:
                    await self._fail(error)
                except Exception as error:
                    log.exception("the listener met an unexpected error and goes on")
                    await self._fail(error)
                now = self._port.now()
                busy = self._room.lines or self._room.watched
                idle_since = math.inf if busy else min(idle_since, now)
                if (self._room.closed or now - idle_since > LINGER) and self._room.dismiss(self):
                    return
        finally:
            self.over = True
            self._drop_ear()

    async def _turn(self) -> None:
        room = self._room
        self._nudged.clear()
        if room.closed:
            return
        if self._ear is None:
            await self._begin()
        if room.tidy is not None:
            room.tidy()
        await self._subscribe()
        await self._beat()
        until = min(room.next_beat(), self._port.now() + room.heartbeat)
        room.looks_at = until
        if self._ear is not None and not self._nudged.is_set():
            await self._ear.listen(until)
        room.looks_at = math.inf

    async def _begin(self) -> None:
        limit = self._port.now() + PATIENCE
        ear = await self._open_ear(self._hear, limit)
        self._ear = ear  # before it hears anything: a call is dated by the ear that heard it
        await ear.subscribe([self._room.channel], limit)
        self._room.hearing = self._hears
        # Whoever came before now waits for a call that may have been made already.
        for line in list(self._room.lines.values()):
            line.beat_at = 0.0

    def _hear(self, channel: bytes, payload: bytes) -> None:
        ear = self._ear
        self._room.heard(channel, payload, ear.run_id if ear is not None else "")

    async def _subscribe(self) -> None:
        """To the channels that somebody watches, and to no others."""
        room, ear = self._room, self._ear
        if ear is None:
            return
        wanted = set(room.watched)
        new, old = wanted - self._subscribed, self._subscribed - wanted
        limit = self._port.now() + PATIENCE
        if new:
            await ear.subscribe(sorted(new), limit)
            self._subscribed |= new
            for channel in new:
                for call in list(room.watched.get(channel, ())):
                    call()
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
            line.beat_at = now + line.interval / 4
            if now - line.failing_since >= line.interval:
                line.failing_since = math.inf
                self._room.call_all(line)
            return
        line.failing_since = math.inf
        if seen is None or isinstance(seen, Grant):
            self._room.answered(line, ticket, seen)
        else:
            line.beat_at = min(sent + line.interval, seen)

    async def _fail(self, error: Exception) -> None:
        """The subscription broke or could not be made: nothing is heard, so everybody asks."""
        self._drop_ear()
        self._failures += 1
        if self._failures == 3:
            log.warning("calls from Redis are not heard, so waiters ask again and again: %s", error)
        self._room.call_all()
        retry_at = self._port.now() + pause(self._failures, self._port.random(), 1.0)
        while not self._room.closed and self._port.now() < retry_at:
            self._nudged.clear()
            await self._nudged.wait(retry_at)

    def _drop_ear(self) -> None:
        if self._room.current(self):
            self._room.hearing = DEAF
        self._subscribed.clear()
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
