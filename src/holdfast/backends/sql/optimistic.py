"""The `optimistic` strategy: the row of a name is read, and taken if its version is still that one.

Contract: `core/backend.py`; exclusive claims only, in no order. A read tells the version and who
holds; an UPDATE ... WHERE version = ? takes. Who loses that race tries again a few times after a
random pause, then waits like everybody else: by looking again, ever more rarely, and not after the
holder's time is over. The body never runs before the version was compared: comparing at the end
of somebody's own work is `locks.optimistic(name)`, and its `commit`.

Law 3: giving up a claim changes the version of a name that nobody holds alone (whoever does has
changed it), so a late UPDATE compares in vain; and leaves a row, so a late INSERT finds the name
taken. Only an attempt that reads after that could still succeed, and it is one of this process,
which remembers whom it has withdrawn.

The tables are those of `row`, and the two exclude one another: who needs order uses that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.backends.common import Tombstones, holder_of
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.rules import Line, microseconds
from holdfast.backends.sql.session import Result
from holdfast.backends.sql.table import EXCLUSIVE, FAILOVER, NOT_OURS, RELEASED, TableBackend
from holdfast.core.backoff import pause
from holdfast.core.lease import valid_until
from holdfast.core.port import Event
from holdfast.errors import Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Claim,
    Grant,
    Released,
    Unknown,
)

__all__ = ["OptimisticBackend"]

TRIES = 4
"""So often somebody may be quicker before an attempt says that it is busy."""

SOONEST = 0.01
"""Seconds until the first further look, about; each later pause is twice as long."""


class OptimisticBackend(TableBackend):
    capabilities = Capabilities(
        modes=frozenset({EXCLUSIVE}),
        fairness="none",
        fencing=frozenset({EXCLUSIVE}),
        crash_release="ttl",
        failover=FAILOVER,
        inspection=False,
    )

    def __init__(self, driver: Driver, values: Mapping[str, Any]) -> None:
        super().__init__(driver, values)
        self._tombstones = Tombstones()
        self._waits: dict[str, tuple[Event, int]] = {}  # who waits, and how often it has looked

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        words, port = self._words, self._port
        name, owner, ttl = claim.name.encode(), claim.owner.encode(), microseconds(claim.ttl)
        info = self._info.of(claim.info)
        sent = port.now()
        self._sweeper.perhaps(sent)
        for _ in range(TRIES):
            try:
                seen = await self._desk.ask(words.peek, (name,), deadline)
            except Unavailable as error:
                seen = Unknown(str(error))
            if isinstance(seen, Unknown):
                known = self._waits.get(claim.owner)
                if known is not None and port.now() >= deadline:
                    return Busy("", None, 0.0)  # it was when last seen: there is no time to look
                raise Unavailable(seen.reason)  # nothing but a look was asked for
            with port.mutex():
                if self._tombstones.cover(claim.owner, port.now()):  # looked at after reading
                    return Buried()
            result: Result | Unknown
            if not seen.rows:
                result = await self._desk.ask(
                    words.take_new, (name, owner, ttl, ttl, info), deadline
                )
            else:
                version, holder, left, line, shows = seen.rows[0]
                if holder == owner and left > 0:  # asking twice is asking once
                    result = await self._desk.ask(words.confirm, (name, owner), deadline)
                elif left > 0 or line:
                    self._look_again(claim, queue)
                    return Busy(holder_of(shows), None, max(0.0, left / 1e6))
                else:
                    result = await self._desk.ask(
                        words.swap, (owner, ttl, ttl, info, name, version), deadline
                    )
            if isinstance(result, Unknown):
                return result
            if result.changed:
                self._waits.pop(claim.owner, None)
                return Grant(claim, valid_until(sent, claim.ttl), words.number(result))
            left = deadline - port.now()
            await port.sleep(max(0.0, min(left, SOONEST * port.random())))
        self._look_again(claim, queue)
        return Busy("", None, self._poll)

    def _look_again(self, claim: Claim, queue: bool) -> None:
        if queue:
            event, looks = self._waits.get(claim.owner) or (self._port.event(), 0)
            self._waits[claim.owner] = event, looks + 1

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        """Until the next look: doubled pauses with jitter, none longer than `poll`, and none past
        the holder's time."""
        port = self._port
        event, looks = self._waits.get(claim.owner) or (port.event(), 0)
        if self._room.closed:
            return None
        delay = pause(looks + 1, port.random(), math.inf, first=SOONEST, longest=self._poll)
        left: float = busy.token
        await event.wait(min(deadline, port.now() + min(delay, max(left, SOONEST))))
        return None

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        waits = self._waits.pop(claim.owner, None)
        if waits is not None:
            waits[0].set()
        if tombstone:
            with self._port.mutex():
                self._tombstones.bury(claim, self._port.now())
        answer = await self._end(claim, tombstone, deadline)
        return answer if isinstance(answer, Unknown) else RELEASED

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        claim = grant.claim
        if tombstone:
            with self._port.mutex():
                self._tombstones.bury(claim, self._port.now())
        given = await self._end(claim, tombstone, deadline)
        if isinstance(given, Unknown):
            return given
        return RELEASED if given else AlreadyLost(NOT_OURS)

    async def _end(self, claim: Claim, tombstone: bool, deadline: float) -> bool | Unknown:
        """Out of the lock; whether it held."""
        name, owner = claim.name.encode(), claim.owner.encode()
        given = await self._desk.ask(self._words.give, (name, owner), deadline)
        if isinstance(given, Unknown):
            return given
        held = bool(given.changed)
        if not held:  # or somebody of `row` stands in line: then it is handed over as they do it

            def leave(line: Line) -> None:
                nonlocal held
                held = line.remove(owner)

            answer = await self._steps.step(
                name, owner, leave, lambda _: True, deadline, make=False
            )
            if isinstance(answer, Unknown):
                return answer
        if tombstone:
            buried = await self._desk.ask_all(
                ((self._words.make, (name,)), (self._words.outdate, (name, owner))), deadline
            )
            if isinstance(buried, Unknown):
                return buried
        return held

    async def close(self) -> None:
        self._room.close()
        for event, _ in list(self._waits.values()):
            event.set()
        await super().close()
