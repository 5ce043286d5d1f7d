"""Acquire: attempt, wait, try again, clean up; and release. The path of every lock.

Laws kept here: 2 (an attempt without an answer is asked again under the same owner, or withdrawn;
it never blocks its own client), 3 (no ghosts), 4 (interrupt or cancel anywhere: the skin calls
`Acquisition.abandon`, which hands the claim to the keeper) and 6 (uncontended: one round trip).

Partners: `skins/` drive these coroutines; `core/backend.py` is what they talk to;
`core/waiting.py` is what happens when the first attempt did not hold.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.core.backend import Backend
from holdfast.core.hold import Hold
from holdfast.core.keeper import TICK, Keeper
from holdfast.core.options import Want, new_owner
from holdfast.core.port import Port
from holdfast.core.reentry import Reentry
from holdfast.core.waiting import Outcome, Waiting
from holdfast.errors import Closed, HoldfastError, LeaseLost, NotHeld, Unavailable
from holdfast.types import AlreadyLost, Busy, Grant, Lost, Renewed, Unknown

__all__ = ["Acquisition", "Engine"]

DAY = 86400.0


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
        sent, before = self.port.now(), hold.until
        limit = min(sent + self.request_timeout, before)
        result: Renewed | Lost | Unknown
        try:
            (result,) = await self.backend.renew([hold.grant], limit)
        except Unavailable as error:  # it may have taken until the lease was over
            result = Unknown(str(error))
        match result:
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
                if hold.until > before:  # the keeper has extended it meanwhile
                    return
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

    def begin(self) -> bool:
        """Announce the claim before the store hears of it; False if it must not any more."""
        engine, keeper = self.engine, self.engine.keeper
        keeper.begin(self.claim)
        # Looked at after announcing, so close() either stops us or sees us; and so does the exit.
        if engine.closed or keeper.exiting:
            keeper.settle(self.claim)
            return False
        return True

    async def refuse(self) -> None:
        """The client was closed. Or the interpreter exits: then this is a daemon thread, which
        asks for nothing any more, and need not be told."""
        if self.engine.keeper.exiting:
            await self.engine.port.sleep(DAY)
        raise Closed("the client was closed while this acquire was under way")

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        """A hold, or who was in the way when time ran out. `timeout` < 0 waits for ever."""
        engine, want = self.engine, self.want
        if want.reentrant:
            hold = await self._reenter()
            if hold is not None:
                return hold
        port = engine.port
        if not self.begin():
            await self.refuse()
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
            outcome: Hold | Busy = self.hold(result, sent)
        elif isinstance(result, Busy) and not blocking:
            engine.keeper.settle(self.claim)
            outcome = result
        else:
            outcome = await Waiting(self, blocking, deadline).until_granted(result, sent)
        if engine.closed or engine.keeper.exiting:
            await self.refuse()
        return outcome

    def hold(self, grant: Grant, sent: float) -> Hold:
        engine, want = self.engine, self.want
        port = engine.port
        hold = Hold(grant, sent, want.renew_every, port.random(), engine.incarnation)
        if want.on_lost is not None:
            hold.listen(self, want.on_lost)
        engine.keeper.add(hold, sent)
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
