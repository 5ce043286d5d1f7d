"""Waiting: what happens after an attempt that did not hold at once. Wait, ask again, give up.

Laws kept here: 2 (an attempt without an answer is asked again under the same owner, or withdrawn)
and 3 (what was withdrawn, or was over when it came, is asked for under a new owner).
Partner: `core/acquire.py`, whose `Acquisition` this continues.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.backoff import pause
from holdfast.core.hold import Hold
from holdfast.core.options import new_owner
from holdfast.core.reentry import advice
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import Buried, Busy, Claim, Grant, Released, Unknown

if TYPE_CHECKING:
    from holdfast.core.acquire import Acquisition, Engine

__all__ = ["LOOK_AT", "Outcome", "Waiting", "ask", "away"]

log = logging.getLogger("holdfast")

Outcome = Grant | Busy | Buried | Unknown | Unavailable

LOOK_AT = "Is the store up, and the URL right?"

COURTESY = 0.2
"""How long a timed-out acquire stays to leave the line itself before the keeper does it."""

LATE = 0.1
"""A request that comes back so much later than it was told to says nothing of the store."""

EXPIRED_GRANTS = 3
"""So many grants that were over when they arrived mean that the ttl is too short for the store."""


def away(error: Unavailable) -> Unavailable:
    """The same for somebody who has asked for something else than a lock: what to look at."""
    return Unavailable(f"{error}. {LOOK_AT}") if type(error) is Unavailable else error


async def ask(engine: Engine, claim: Claim, queue: bool, deadline: float) -> tuple[float, Outcome]:
    """One attempt, and since when the store is silent if it was not answered. Raises what refuses
    it for good."""
    port, patience = engine.port, engine.request_timeout
    since, turn = port.now(), None
    if engine.turns is not None:
        turn = await engine.turns.turn(patience, deadline if queue else since + patience)
        since = turn.since
    answered = False
    try:
        limit = min(since + patience, max(deadline, since))
        outcome: Outcome = await engine.backend.attempt(claim, queue, limit)
        answered = not isinstance(outcome, Unknown)
    except Unavailable as error:
        outcome = error
    finally:
        if turn is not None:
            turn.over(answered)
    return since, outcome


class Waiting:
    """One acquisition, from its first attempt until it holds, or gave up."""

    __slots__ = (
        "acquisition", "blocking", "deadline", "excused", "expired", "failing_since", "failures",
        "in_line", "reason", "waited",
    )  # fmt: skip

    def __init__(self, acquisition: Acquisition, blocking: bool, deadline: float) -> None:
        self.acquisition = acquisition
        self.blocking = blocking
        self.deadline = deadline
        self.failing_since = math.inf
        self.failures = 0
        self.reason = ""  # why the store refused, if it did since it last answered
        self.expired = 0
        self.excused = False  # for a silence in which it was this process that was away
        self.waited = False
        self.in_line = False  # the store has acknowledged our place, so it must be given up

    async def until_granted(self, result: Outcome, sent: float) -> Hold | Busy:
        acquisition, engine = self.acquisition, self.acquisition.engine
        port = engine.port
        while True:
            if isinstance(result, Grant):
                if acquisition.usable(result):
                    return acquisition.hold(result, sent)
                over = port.now() >= result.until
                await self._begin_again()
                if over:
                    self._count_expired()
            elif isinstance(result, Buried):
                await self._begin_again()
            elif isinstance(result, Busy):
                self.failing_since, self.failures, self.reason = math.inf, 0, ""
                self.in_line = self.blocking
                if port.now() >= self.deadline or not self.blocking:
                    await self._leave()
                    return result
                if not self.waited:
                    self._caution()
                busy = result
                sent, outcome = await self._wait(busy)
                if outcome is not None:
                    result = outcome
                    continue
                if port.now() >= self.deadline:
                    await self._leave()
                    return busy
            else:
                await self._endure(result, sent)
            if engine.closed or engine.keeper.exiting or acquisition.given_up:
                await acquisition.refuse()
            sent, result = await self._attempt()

    def _caution(self) -> None:
        """The wait begins. Say what it may hold up, and if it may have no end."""
        self.waited = True
        acquisition, port = self.acquisition, self.acquisition.engine.port
        port.waits()
        own = acquisition.own()
        if own is not None and not getattr(own, "told", False):
            own.told = True
            log.warning(
                "%r is waited for by the %s that has taken it: that ends when somebody else "
                "releases the lease, or never. %s. (If the lease was passed on, say so by its "
                "detach())",
                acquisition.want.name,
                "task" if port.asynchronous else "thread",
                advice(own, acquisition.want),
            )

    async def _wait(self, busy: Busy) -> tuple[float, Grant | Unavailable | None]:
        acquisition = self.acquisition
        engine = acquisition.engine
        sent = engine.port.now()
        acquisition.waits = True
        try:
            if acquisition.given_up:  # looked at after saying so: one of us sees the other
                return sent, None
            grant = await engine.backend.wait(acquisition.claim, busy, self.deadline)
        except Unavailable as error:
            return engine.port.now(), error  # it failed now, however long it had been waited for
        finally:
            acquisition.waits = False
        # A grant that came while waiting is dated by the backend; renewals count from here.
        return engine.port.now(), grant

    async def _attempt(self) -> tuple[float, Outcome]:
        acquisition = self.acquisition
        try:
            return await ask(acquisition.engine, acquisition.claim, self.blocking, self.deadline)
        except HoldfastError:  # refused: what earlier attempts left, if anything, is owed
            self._hand_over()
            raise

    async def _endure(self, trouble: Unknown | Unavailable, sent: float) -> None:
        """The store is silent or away: pause and come back, or give up with `Unavailable`."""
        engine, claim = self.acquisition.engine, self.acquisition.claim
        if isinstance(trouble, Unknown):
            claim.unanswered = True
            reason = f"{trouble.reason}; before: {self.reason}" if self.reason else trouble.reason
        else:
            reason = self.reason = str(trouble)
        now = engine.port.now()
        self.failures += 1
        self.failing_since = min(self.failing_since, sent)
        if now >= sent + engine.request_timeout + LATE and not self.excused:
            # We were stopped, or the host slept: the silence was ours. Ask once more.
            self.excused, self.failing_since = True, now
        give_up = min(self.deadline, self.failing_since + engine.request_timeout)
        if now >= give_up:
            self._hand_over()
            raise Unavailable(
                f"could not acquire {claim.name!r}: the store did not answer for "
                f"{now - self.failing_since:.1f} s ({reason}). Whether somebody else holds it is "
                "not known; whatever of this attempt may have reached the store is being "
                f"withdrawn. {LOOK_AT}"
            ) from (trouble if isinstance(trouble, Unavailable) else None)
        await engine.port.sleep(pause(self.failures, engine.port.random(), give_up - now))

    async def _begin_again(self) -> None:
        """What the store has of this claim is no use any more: the grant was over before we could
        use it (we were paused, or the ttl is shorter than the way to the store), or somebody
        withdrew it. Give it back and stand in line as somebody new (law 3)."""
        acquisition = self.acquisition
        old = acquisition.claim
        acquisition.engine.keeper.abandon(old)
        self.in_line = False
        acquisition.claim = replace(old, owner=new_owner(), unanswered=False)
        if not acquisition.begin():
            await acquisition.refuse()

    def _count_expired(self) -> None:
        self.expired += 1
        if self.expired >= EXPIRED_GRANTS:
            claim = self.acquisition.claim
            self.acquisition.engine.keeper.settle(claim)
            raise Unavailable(
                f"{claim.name!r} was granted {self.expired} times, and each time the lease was "
                f"over when the answer arrived. A ttl of {claim.ttl:g} s is too short for this "
                "store or this host; use a longer one"
            )

    async def _leave(self) -> None:
        """Time ran out: leave the line ourselves if the store answers at once, else owe it."""
        engine, claim = self.acquisition.engine, self.acquisition.claim
        if self.in_line and not claim.unanswered:
            try:
                result = await engine.backend.withdraw(claim, False, engine.port.now() + COURTESY)
            except Unavailable:
                pass
            else:
                if isinstance(result, Released):
                    engine.keeper.settle(claim)
        self._hand_over()

    def _hand_over(self) -> None:
        """Whatever the store may have of this claim is the keeper's to withdraw from now on."""
        claim, keeper = self.acquisition.claim, self.acquisition.engine.keeper
        if not self.in_line and not claim.unanswered:
            keeper.settle(claim)  # it never had anything of it
        keeper.abandon(claim)
