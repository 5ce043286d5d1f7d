"""Acquire: attempt, wait, try again, clean up; and release. The path of every lock.

Laws kept here: 2 (an attempt without an answer is asked again under the same owner, or withdrawn;
it never blocks its own client), 3 (no ghosts), 4 (interrupt or cancel anywhere: the skin calls
`Acquisition.abandon`, which hands the claim to the keeper) and 6 (uncontended: one round trip).

Partners: `sync.py` and `aio.py` drive these coroutines; `core/backend.py` is what they talk to.
"""

from __future__ import annotations

import math
import secrets
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.backend import Backend
from holdfast.core.backoff import pause
from holdfast.core.hold import Hold
from holdfast.core.keeper import TICK, Keeper
from holdfast.core.options import Want
from holdfast.core.port import Port
from holdfast.core.reentry import Reentry
from holdfast.errors import Closed, HoldfastError, LeaseLost, NotHeld, Unavailable
from holdfast.types import AlreadyLost, Buried, Busy, Grant, Lost, Released, Renewed, Unknown

__all__ = ["Acquisition", "Engine"]

Outcome = Grant | Busy | Buried | Unknown | Unavailable

COURTESY = 0.2
"""How long a timed-out acquire stays to leave the line itself before the keeper does it."""

EXPIRED_GRANTS = 3
"""So many grants that were over when they arrived mean that the ttl is too short for the store."""

_unguessable = secrets.SystemRandom().randbytes


def new_owner() -> str:
    return _unguessable(16).hex()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Engine:
    """One client's backend, keeper and re-entry counts, bound to one port."""

    port: Port
    backend: Backend
    request_timeout: float
    identity: Mapping[str, str]
    """Who this client is, for operators: host, pid, label."""
    closed: bool = False
    incarnation: int = field(init=False)
    keeper: Keeper = field(init=False)
    reentry: Reentry = field(init=False)

    def __post_init__(self) -> None:
        self.incarnation = self.port.incarnation()
        self.keeper = Keeper(self.port, self.backend)
        self.reentry = Reentry()
        self.backend.open(self.port, self.keeper)
        weakref.finalize(self, self.keeper.retire).atexit = False

    def trusted(self, hold: Hold) -> bool:
        """What `lease.held` says: computed at every look, from the clock alone."""
        port = self.port
        return hold.trusted(port.now()) and hold.incarnation == port.incarnation()

    def check_deadline(self, hold: Hold) -> None:
        """Notice a deadline that passed, whether or not the keeper is alive to notice it."""
        if not hold.end and hold.incarnation == self.port.incarnation():
            now = self.port.now()
            if now >= hold.until:
                late = now - hold.until
                self.keeper.lose(hold, f"its time ran out {late:.3f} s ago", gone=False)

    def over(self, hold: Hold) -> HoldfastError:
        """What to raise to somebody who relies on a hold that has ended."""
        if hold.lost:
            return hold.loss()
        return NotHeld(f"the lease of {hold.claim.name!r} was released; acquire it again")

    async def renew(self, hold: Hold) -> None:
        """Extend now, by the caller's own request: one round trip, or an error."""
        self.check_deadline(hold)
        if hold.end:
            raise self.over(hold)
        sent = self.port.now()
        results = await self.backend.renew(
            [hold.grant], min(sent + self.request_timeout, hold.until)
        )
        match results[0]:
            case Renewed(until):
                self.check_deadline(hold)  # what is over stays over, though the store says yes
                if hold.end:
                    raise self.over(hold)
                hold.renewed(sent, until, self.port.random())
            case Lost(reason):
                self.keeper.lose(hold, reason, gone=True)
                raise self.over(hold)
            case Unknown(reason):
                self.check_deadline(hold)
                if hold.end:
                    raise self.over(hold)
                raise Unavailable(
                    f"renewing {hold.claim.name!r} got no answer ({reason}); the lease is still "
                    f"trusted for {hold.until - self.port.now():.1f} s"
                )

    async def until_ended(
        self, hold: Hold, over: Callable[[], bool], deadline: float | None
    ) -> bool:
        """Wait until the hold has ended, `over` says so, or the deadline passed; True when lost."""
        port = self.port
        if hold.incarnation != port.incarnation():
            return True
        while True:
            with port.mutex():
                if hold.ended is None:
                    hold.ended = port.event()
                ended = hold.ended  # set once; a lease that leaves a shared hold takes it away
            self.check_deadline(hold)
            now = port.now()
            if hold.end or over() or (deadline is not None and now >= deadline):
                return hold.lost
            # Not only until the event: its sender, the keeper, may have died (law 5).
            limit = math.inf if deadline is None else deadline
            await ended.wait(min(hold.until, now + TICK, limit))

    async def release(self, hold: Hold, share: object) -> bool:
        """Give up one lease on this hold; the last one frees the lock, in one round trip.

        True: it was ours until now. False: it had been lost, or is not this process's to release.
        A store that does not answer does not make this fail: the keeper goes on trying, and the
        ttl bounds how long others wait.
        """
        if hold.incarnation != self.port.incarnation():
            return False  # law 8: a forked child releases nothing
        now = self.port.now()
        if now >= hold.until:
            self.check_deadline(hold)
        if not self.keeper.leave(hold, share):
            return not hold.lost
        claim = hold.claim
        try:
            result = await self.backend.release(
                hold.grant, claim.unanswered, now + self.request_timeout
            )
        except Unavailable as error:
            result = Unknown(str(error))
        if isinstance(result, Unknown):
            self.keeper.owe(claim)
        else:
            self.keeper.settle(claim)
            if isinstance(result, AlreadyLost):
                hold.end = result.reason
        hold.announce(self.port)
        return not hold.lost

    async def close(self, patience: float) -> None:
        """Again after an interrupted or cancelled one: goes on where that stopped."""
        self.closed = True
        try:
            await self.keeper.stop(self.port.now() + patience)
        finally:
            await self.backend.close()


class Acquisition:
    """One call of acquire, from its first request until it holds or nothing of it is left.

    Made before anything is sent, so that whoever drives `run` can `abandon` it, whatever was
    interrupted and wherever: the claim is known from the start.
    """

    __slots__ = ("claim", "engine", "entered", "want")

    def __init__(self, engine: Engine, want: Want) -> None:
        self.engine = engine
        self.want = want
        self.claim = want.claim(new_owner(), engine.identity)
        self.entered: Hold | None = None  # the hold that was entered again instead

    def abandon(self) -> None:
        """Never blocks and may be called whatever happened, more than once."""
        if self.entered is not None:
            self.engine.keeper.drop(self.entered, self)
        self.engine.keeper.abandon(self.claim)

    def begin(self) -> None:
        """Announce the claim before the store hears of it."""
        engine = self.engine
        engine.keeper.begin(self.claim)
        if engine.closed:  # looked at after announcing, so close() either stops us or sees us
            engine.keeper.settle(self.claim)
            raise Closed("the client was closed while this acquire was under way")

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        """A hold, or who was in the way when time ran out. `timeout` < 0 waits for ever."""
        engine, want = self.engine, self.want
        if want.reentrant:
            hold = await self._reenter()
            if hold is not None:
                return hold
        port = engine.port
        self.begin()
        sent = port.now()
        deadline = sent + timeout if blocking and timeout >= 0 else math.inf
        # The uncontended path: one attempt, one answer.
        limit = sent + engine.request_timeout
        result: Outcome
        try:
            result = await engine.backend.attempt(self.claim, blocking, min(limit, deadline))
        except Unavailable as error:
            result = error
        except HoldfastError:  # refused before anything was asked of the store: nothing is owed
            engine.keeper.settle(self.claim)
            raise
        if isinstance(result, Grant) and port.now() < result.until:
            return self._hold(result, sent)
        if isinstance(result, Busy) and not blocking:
            engine.keeper.settle(self.claim)
            return result
        return await _Waiting(self, blocking, deadline).until_granted(result, sent)

    def _hold(self, grant: Grant, sent: float) -> Hold:
        engine, want = self.engine, self.want
        port = engine.port
        hold = Hold(grant, sent, want.renew_every, port.random(), engine.incarnation)
        if want.on_lost is not None:
            hold.listen(self, want.on_lost)
        engine.keeper.add(hold, sent)
        if engine.closed:
            raise Closed("the client was closed while this acquire was under way")
        if want.reentrant:
            hold.shares = [self]
            engine.reentry.remember(hold, port.context())
        return hold

    async def _reenter(self) -> Hold | None:
        """The hold this thread or task already has of this name, if it can be relied on."""
        engine, want = self.engine, self.want
        hold = engine.reentry.find(want.name, want.mode, engine.port.context())
        if hold is None or hold.shares is None or not engine.trusted(hold):
            return None
        if hold.renew_every is None:
            # A fixed lease promises its ttl from this acquire on: ask for it.
            try:
                await engine.renew(hold)
            except (LeaseLost, NotHeld):
                return None
        with engine.port.mutex():
            if hold.end:  # lost, or released by another thread, just now
                return None
            self.entered = hold
            hold.shares.append(self)
        if want.on_lost is not None:
            hold.listen(self, want.on_lost)
            if hold.lost:  # between the two
                hold.announce(engine.port)
        return hold


class _Waiting:
    """What happens after an attempt that did not hold at once: wait, ask again, give up."""

    __slots__ = (
        "acquisition", "blocking", "deadline", "expired", "failing_since", "failures", "in_line",
        "reason",
    )  # fmt: skip

    def __init__(self, acquisition: Acquisition, blocking: bool, deadline: float) -> None:
        self.acquisition = acquisition
        self.blocking = blocking
        self.deadline = deadline
        self.failing_since = math.inf
        self.failures = 0
        self.reason = ""  # why the store refused, if it did since it last answered
        self.expired = 0
        self.in_line = False  # the store has acknowledged our place, so it must be given up

    async def until_granted(self, result: Outcome, sent: float) -> Hold | Busy:
        acquisition, engine = self.acquisition, self.acquisition.engine
        port = engine.port
        while True:
            if isinstance(result, Grant):
                if port.now() < result.until:
                    return acquisition._hold(result, sent)
                self._begin_again()
                self._count_expired()
            elif isinstance(result, Buried):
                self._begin_again()
            elif isinstance(result, Busy):
                self.failing_since, self.failures, self.reason = math.inf, 0, ""
                self.in_line = self.blocking
                if port.now() >= self.deadline or not self.blocking:
                    await self._leave()
                    return result
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
            if engine.closed:
                raise Closed("the client was closed while this acquire was waiting")
            sent, result = await self._attempt()

    async def _wait(self, busy: Busy) -> tuple[float, Grant | Unavailable | None]:
        engine = self.acquisition.engine
        sent = engine.port.now()
        try:
            grant = await engine.backend.wait(self.acquisition.claim, busy, self.deadline)
        except Unavailable as error:
            return sent, error
        # A grant that came while waiting is dated by the backend; renewals count from here.
        return engine.port.now(), grant

    async def _attempt(self) -> tuple[float, Outcome]:
        engine, claim = self.acquisition.engine, self.acquisition.claim
        sent = engine.port.now()
        limit = min(sent + engine.request_timeout, max(self.deadline, sent))
        try:
            return sent, await engine.backend.attempt(claim, self.blocking, limit)
        except Unavailable as error:
            return sent, error
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
        give_up = min(self.deadline, self.failing_since + engine.request_timeout)
        if now >= give_up:
            self._hand_over()
            raise Unavailable(
                f"could not acquire {claim.name!r}: the store did not answer for "
                f"{now - self.failing_since:.1f} s ({reason}). Whether somebody else holds it is "
                "not known; whatever of this attempt may have reached the store is being withdrawn"
            ) from (trouble if isinstance(trouble, Unavailable) else None)
        await engine.port.sleep(pause(self.failures, engine.port.random(), give_up - now))

    def _begin_again(self) -> None:
        """What the store has of this claim is no use any more: the grant was over before we could
        use it (we were paused, or the ttl is shorter than the way to the store), or somebody
        withdrew it. Give it back and stand in line as somebody new (law 3)."""
        acquisition = self.acquisition
        old = acquisition.claim
        acquisition.engine.keeper.abandon(old)
        self.in_line = False
        acquisition.claim = replace(old, owner=new_owner(), unanswered=False)
        acquisition.begin()

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
