"""A client that may be taken for dead: its link to the store, and what the link vouches for.

Contract: a backend around another one, which adds `crash_grace` and changes nothing else. The rules
are the client's in docs/concepts/crash-detector.md, and numbered as there. It tells the core by
`Signals`: a lease is certain until the sending of the last answered ping + half the grace.

Laws kept here: 1 (dated from the sending), 5 (what no link vouches for in time is lost, before the
detector may free it). Hazards: the link is replaced while a grant is on its way, in a line or in an
unanswered request, so a claim remembers which link was there before its first request; and what
the link's task and the users' threads change together, they change under the port's mutex.
Partners: `core/presence.py`, what it needs of a store; `core/keeper.py`, which it reports to.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.backend import Downgrading, Signals
from holdfast.core.backoff import pause
from holdfast.core.keeper import BATCH
from holdfast.core.lease import DRIFT
from holdfast.core.port import Port, Task
from holdfast.core.presence import Detectable, Link
from holdfast.errors import HoldfastError, Misconfigured, Unavailable, Unsupported
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Cell,
    CellConflict,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["Vouched"]

log = logging.getLogger("holdfast")

PINGS = 6
"""In a grace; at least one in two seconds."""

LOST = 0.85
"""The part of a grace after which what no link vouches for is lost; a late ping may add a tenth."""

LINGER = 30.0
"""Seconds after which a link that vouches for nothing is closed."""

GIVEN_UP = "the store could not confirm in time that it sees this client (crash_grace)"


class Vouched:
    def __init__(self, inner: Detectable, presence: str, grace: float) -> None:
        self._inner = inner
        self._presence = presence
        self._grace = grace
        self._every = min(grace / PINGS, 2.0)
        self._link: Link | None = None
        self._number = 0  # of the link
        self._contact = -math.inf  # when its last answered ping was sent
        self._certain = -math.inf  # until when it vouches
        self._asked: dict[str, int] = {}  # owner -> the link that was there before it first asked
        self._held: dict[str, Grant] = {}  # what the link vouches for
        self._doubted: dict[
            str, tuple[Grant, float]
        ] = {}  # what it does not; and when that is lost
        self._left: dict[str, tuple[Claim, float]] = {}  # lost so: the store may still have them
        self._refusal: Misconfigured | None = None
        self._trouble = ""
        self._failures = 0
        self._used = 0.0
        self._task: Task | None = None
        self._closed = False

    # -- what is passed on ------------------------------------------------------------------------

    @property
    def inner(self) -> Detectable:
        """The backend itself, which may offer more than the protocol asks for."""
        return self._inner

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port
        self._signals = signals
        self._up = port.event()  # there was an answer to a ping
        self._wanted = port.event()  # somebody waits for it
        self._inner.open(port, signals)

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        return await self._inner.inspect(prefix, exact, deadline)

    async def evict(self, name: str, deadline: float) -> int:
        return await self._inner.evict(name, deadline)

    async def downgrade(self, grant: Grant, deadline: float) -> Lost | Unknown | None:
        if not isinstance(self._inner, Downgrading):
            raise Unsupported("this backend cannot make a writer a reader in one step")
        return await self._inner.downgrade(grant, deadline)

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        return await self._inner.cell_read(name, deadline)

    async def cell_write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
        deadline: float,
    ) -> Cell | CellConflict | Unknown:
        return await self._inner.cell_write(
            name, value, expect=expect, fence=fence, ttl=ttl, deadline=deadline
        )

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        return await self._inner.cell_wait(name, version, deadline)

    # -- claims -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        owner = claim.owner
        first = owner not in self._asked
        if first:
            self._asked[owner] = await self._seen(deadline)
        try:
            result = await self._inner.attempt(claim, queue, deadline)
        except HoldfastError:
            if first:  # surely not applied, and perhaps nobody comes back for it
                self._asked.pop(owner, None)
            raise
        if isinstance(result, Grant):
            return await self._vouch(result, deadline)
        if isinstance(result, Buried) or (isinstance(result, Busy) and not queue):
            self._asked.pop(owner, None)
        return result

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        grant = await self._inner.wait(claim, busy, deadline)
        if grant is None:
            return None
        vouched = await self._vouch(grant, min(grant.until, max(deadline, self._port.now() + 1)))
        return vouched if isinstance(vouched, Grant) else None  # the next attempt finds out

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        number = self._number  # read first, as in `_seen`
        if self._port.now() >= self._certain:
            number = -1
        results = await self._inner.renew(grants, deadline)
        for grant, result in zip(grants, results, strict=True):
            owner = grant.claim.owner
            if isinstance(result, Lost):
                self._forget(owner)
            elif isinstance(result, Renewed) and owner in self._doubted:
                self._trust(owner, number)
        return results

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        self._forget(grant.claim.owner)
        return await self._inner.release(grant, tombstone, deadline)

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        self._forget(claim.owner)
        return await self._inner.withdraw(claim, tombstone, deadline)

    async def close(self) -> None:
        self._closed = True
        link = self._link
        if link is not None:
            link.cut()
        self._up.set()
        if self._task is not None:
            await self._task.join(self._port.now() + 1)
        await self._inner.close()

    # -- vouching ---------------------------------------------------------------------------------

    async def _seen(self, deadline: float) -> int:
        """The number of a link that vouches now (rule 3)."""
        begun = False
        while True:
            number = self._number  # read first: if it is replaced just now, we name the old one
            now = self._used = self._port.now()
            if now < self._certain:
                return number
            if begun and self._refusal is not None:
                raise self._refusal
            if now >= deadline or self._closed:
                why = f" ({self._trouble})" if self._trouble else ""
                raise Unavailable(f"the link that crash_grace needs could not be made{why}")
            self._up.clear()
            self._wanted.set()
            self._begin()
            begun = True
            if now >= self._certain:
                await self._up.wait(min(deadline, now + self._every))

    async def _vouch(self, grant: Grant, deadline: float) -> Grant | Unknown:
        """The grant, as certain as the link makes it (rule 2)."""
        port, owner = self._port, grant.claim.owner
        while True:
            with port.mutex():
                if self._asked.get(owner) == self._number and port.now() < self._certain:
                    del self._asked[owner]
                    self._held[owner] = grant
                    grant.certain_until = self._certain
                    return grant
            try:
                number = await self._seen(deadline)
                if self._asked.get(owner) == number:
                    continue
                # Another link was there when it was asked for: this one vouches for a renewal.
                result = (await self._inner.renew([grant], deadline))[0]
            except HoldfastError as error:
                return Unknown(str(error))
            if not isinstance(result, Renewed):
                return Unknown(result.reason)
            grant = replace(grant, until=max(grant.until, result.until), confirm_by=None)
            self._asked[owner] = number

    def _trust(self, owner: str, number: int) -> None:
        """It was renewed, by a request sent while this link was there."""
        with self._port.mutex():
            doubted = self._doubted.get(owner)
            if doubted is None or number != self._number:
                return
            del self._doubted[owner]
            self._held[owner] = doubted[0]
            certain = self._certain
        self._signals.certain_until(owner, certain)

    def _forget(self, owner: str) -> None:
        with self._port.mutex():
            self._asked.pop(owner, None)
            self._held.pop(owner, None)
            self._doubted.pop(owner, None)
            self._left.pop(owner, None)

    # -- the link ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._port.mutex():
            if self._closed or (self._task is not None and self._task.alive):
                return
            self._refusal = None
            self._task = self._port.task(self._run, self._farewell, "holdfast-presence")
            self._task.start()

    async def _farewell(self) -> None:
        """The keeper gives back what is held; the link ends with the process."""

    async def _run(self) -> None:
        try:
            while not self._closed and self._port.now() < self._lingers_until():
                try:
                    await self._turn()
                    self._failures = 0
                except Misconfigured as error:
                    self._refusal = error
                    log.warning("no link to the store can be made: %s", error)
                    self._replace()
                    self._up.set()
                    if not self._doubted:
                        return
                    await self._pause()
                except HoldfastError as error:
                    self._trouble = str(error)
                    self._replace()
                    await self._pause()
                except Exception:
                    log.exception("the link met an unexpected error, and is made anew")
                    self._replace()
                    await self._pause()
        finally:
            self._replace()

    def _lingers_until(self) -> float:
        busy = self._asked or self._held or self._doubted or self._left
        return math.inf if busy else self._used + LINGER

    async def _pause(self) -> None:
        """Before the link is tried again; what is lost by then is lost in time (rule 5)."""
        self._give_up(self._port.now())
        if self._closed:
            return
        self._failures += 1
        now = self._port.now()
        limit = min(self._every, max(0.0, self._next_loss() - now))
        await self._wanted.wait(now + pause(self._failures, self._port.random(), limit))
        self._wanted.clear()

    def _next_loss(self) -> float:
        return min((lost_at for _, lost_at in list(self._doubted.values())), default=math.inf)

    async def _turn(self) -> None:
        port = self._port
        link = self._link
        if link is None:
            limit = min(port.now() + max(self._grace / 4, 0.05), self._next_loss())
            link = self._link = await self._inner.appear(self._presence, limit)
        sent = port.now()
        self._give_up(sent)
        # Not beyond the next loss, which shall be told; but a ping must have its chance.
        await link.ping(
            min(sent + self._grace / 3, max(self._next_loss(), sent + self._grace / 10))
        )
        self._contact = sent
        self._certain = certain = sent + self._grace / 2 * (1 - DRIFT)
        self._trouble = ""
        self._up.set()
        for owner in list(self._held):
            self._signals.certain_until(owner, certain)
        if self._doubted:
            await self._claim_again(sent + self._every)
        self._give_up(port.now())
        if self._left:
            await self._clean_up(min(sent + self._every, self._next_loss()))
        soon = self._every / 10 if self._doubted or self._left else self._every
        if not self._closed:
            await link.rest(min(sent + soon, self._next_loss()))

    def _replace(self) -> None:
        """The link is of no use any more: it vouches for nothing from now on (rule 4)."""
        link = self._link
        with self._port.mutex():
            self._link = None
            self._number += 1
            lost_at = self._contact + LOST * self._grace
            for owner, grant in self._held.items():
                self._doubted[owner] = grant, lost_at
            self._held = {}
            self._contact = self._certain = -math.inf
        if link is not None:
            link.close()

    async def _claim_again(self, stop: float) -> None:
        """Renew what the link does not vouch for, whether it is due or not: if the store still has
        it, it is ours, and whoever was about to free it finds it changed. (A fixed lease then lasts
        longer in the store, but not for its holder, who gives it back at its end.)"""
        grants = [grant for grant, _ in list(self._doubted.values())]
        for first in range(0, len(grants), BATCH):
            batch = grants[first : first + BATCH]
            limit = min(stop, self._next_loss())
            if limit <= self._port.now():
                return
            try:
                results = await self.renew(batch, limit)
            except HoldfastError:
                return
            for grant, result in zip(batch, results, strict=True):
                if isinstance(result, Lost):
                    self._signals.lost(grant.claim.owner, result.reason)

    def _give_up(self, now: float) -> None:
        """Lose what nothing vouches for, before it may be freed (rule 5)."""
        for owner, (grant, lost_at) in list(self._doubted.items()):
            if now < lost_at:
                continue
            with self._port.mutex():
                if self._doubted.pop(owner, None) is None:  # released meanwhile
                    continue
                self._left[owner] = grant.claim, now + grant.claim.ttl
            self._signals.lost(owner, GIVEN_UP)

    async def _clean_up(self, stop: float) -> None:
        """What was given up may still be in the store, in a live client's name."""
        for owner, (claim, until) in list(self._left.items()):
            now = self._port.now()
            if now >= stop:
                return
            if now < until:
                try:
                    result = await self._inner.withdraw(claim, claim.unanswered, stop)
                except HoldfastError:
                    return
                if isinstance(result, Unknown):
                    return
            self._left.pop(owner, None)
