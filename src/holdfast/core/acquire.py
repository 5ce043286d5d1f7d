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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.backend import Backend, Downgrading, InTurn, Together
from holdfast.core.deadline import deadline_of
from holdfast.core.hold import RELEASED, Hold
from holdfast.core.keeper import TICK, Keeper
from holdfast.core.options import Want, new_owner
from holdfast.core.port import Port, check_may_wait
from holdfast.core.reentry import Reentry, in_its_own_way
from holdfast.core.stores import DOWNGRADING
from holdfast.core.vouching import Vouched
from holdfast.core.waiting import Waiting, ask
from holdfast.errors import (
    Closed,
    HoldfastError,
    LeaseLost,
    Misconfigured,
    NotHeld,
    Unavailable,
    Unsupported,
)
from holdfast.types import AlreadyLost, Busy, Grant, Lost, Mode, Released, Renewed, Unknown

__all__ = ["Acquisition", "Engine", "GivenUp"]

DAY = 86400.0


class GivenUp(Exception):
    """Ends an acquisition that somebody else gave up; never leaves the library."""


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
    turns: InTurn | None = field(init=False)
    reentry: Reentry = field(init=False)

    def __post_init__(self) -> None:
        self.incarnation = self.port.incarnation()
        self.keeper = Keeper(self.port, self.backend)
        self.reentry = Reentry()
        self.backend.open(self.port, self.keeper)
        self.turns = self.store if isinstance(self.store, InTurn) else None
        weakref.finalize(self, self.keeper.retire).atexit = False

    @property
    def store(self) -> Backend:
        """The backend itself, also of a client with `crash_grace`."""
        return self.backend.inner if isinstance(self.backend, Vouched) else self.backend

    def trusted(self, hold: Hold) -> bool:
        """What `lease.held` says: computed at every look, from the clock alone."""
        port = self.port
        if hold.together:
            now = port.now()
            trusted = all(each.trusted(now) for each in hold.together)
        else:
            trusted = hold.trusted(port.now())
        return trusted and hold.incarnation == port.incarnation()

    def own(self, want: Want) -> Hold | None:
        """What the calling thread or task has of this name, and would wait for in vain."""
        return in_its_own_way(self.keeper.holds, want, self.port.context())

    def check_deadline(self, hold: Hold) -> None:
        """Notice a deadline that passed, whether or not the keeper is alive to notice it."""
        if not hold.end and hold.incarnation == self.port.incarnation():
            now = self.port.now()
            for each in hold.together or (hold,):
                if now >= each.until:
                    self.keeper.lose(each, each.ran_out(now), gone=False)

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
        holds = hold.together or (hold,)
        sent, before = self.port.now(), [each.until for each in holds]
        limit = min(sent + self.request_timeout, *before)
        results: Sequence[Renewed | Lost | Unknown]
        try:
            results = await self.backend.renew([each.grant for each in holds], limit)
        except Unavailable as error:  # it may have taken until the lease was over
            results = [Unknown(str(error))] * len(holds)
        self.check_deadline(hold)  # what is over stays over, though the store says yes
        for each, result in zip(holds, results, strict=True):
            if isinstance(result, Lost):
                self.keeper.lose(each, result.reason, gone=True)
        if hold.end:
            raise self.over(hold)
        silence: Unknown | None = None
        for each, result, until in zip(holds, results, before, strict=True):
            if isinstance(result, Renewed):
                each.renewed(sent, result.until, self.port.random())
            elif isinstance(result, Unknown) and each.until <= until:  # nor did the keeper do it
                silence = result
        if silence is not None:
            left = min(each.until for each in holds) - self.port.now()
            raise Unavailable(
                f"renewing {hold.claim.name!r} got no answer ({silence.reason}); the lease is "
                f"still trusted for {left:.1f} s"
            )

    async def downgrade(self, hold: Hold) -> None:
        """The exclusive lease becomes a shared one, with nobody in between: one round trip.

        From the first moment on its holder is told that it is shared: if there is no answer,
        readers may have been let in, so it must not write any more."""
        self.check_deadline(hold)
        if hold.end:
            raise self.over(hold)
        backend, name = self.backend, hold.claim.name
        if not isinstance(backend, Downgrading) or Mode.SHARED not in backend.capabilities.modes:
            raise Unsupported(
                "this backend cannot make a writer a reader without letting another writer in "
                f"between ({DOWNGRADING} can); release it, and acquire to read"
            )
        if hold.shares is not None and len(hold.shares) > 1:
            raise Misconfigured(
                f"{name!r} was entered more than once, and who is inside relies on writing; "
                "downgrade when the others are released"
            )
        if hold.grant.claim.mode is Mode.SHARED:
            return
        with self.port.mutex():
            hold.forget()  # to be entered again as a writer
            hold.claim = replace(hold.claim, mode=Mode.SHARED)
            self.reentry.reads(hold, self.port.context())
        limit = min(self.port.now() + self.request_timeout, hold.until)
        try:
            result = await backend.downgrade(hold.grant, limit)
        except Unavailable as error:
            result = Unknown(str(error))
        if isinstance(result, Lost):
            self.keeper.lose(hold, result.reason, gone=True)
        self.check_deadline(hold)
        if hold.end:
            raise self.over(hold)
        if isinstance(result, Unknown):
            hold.claim.unanswered = hold.grant.claim.unanswered = True
            raise Unavailable(
                f"whether {name!r} is shared now is not known ({result.reason}): others may read, "
                "so write no more; downgrade() again, or release it"
            )
        hold.grant = replace(hold.grant, claim=hold.claim)

    async def until_ended(self, hold: Hold, over: Callable[[], bool], deadline: float) -> bool:
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
            if hold.end or over() or now >= deadline:
                return hold.lost
            # Not only until the event: its sender, the keeper, may have died (law 5).
            await ended.wait(min(hold.until, now + TICK, deadline))

    async def release(self, hold: Hold, share: object) -> bool:
        """Give up one lease on this hold; the last one frees the lock, in one round trip.

        True: it was ours until now. False: it had been lost, or is not this process's to release.
        A store that does not answer does not make this fail: the keeper goes on trying, and the
        ttl bounds how long others wait.
        """
        if hold.incarnation != self.port.incarnation():
            return False  # law 8: a forked child releases nothing
        if self.port.nested():
            self.keeper.leave_later(hold, share)
            return not hold.lost
        now = self.port.now()
        if now >= hold.until:
            self.check_deadline(hold)
        if hold.together:
            return await self._release_together(hold.together, now + self.request_timeout)
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

    async def _release_together(self, holds: Sequence[Hold], deadline: float) -> bool:
        """As `release`; in one round trip where the store can. If one had been lost, all were."""
        ours = [hold for hold in holds if self.keeper.end(hold, RELEASED)]
        results: list[Released | AlreadyLost | Unknown] = []
        try:
            if ours and isinstance(self.backend, Together):
                grants = [hold.grant for hold in ours]
                results = await self.backend.release_together(grants, deadline)
            else:
                for hold in reversed(ours):
                    tombstone = hold.claim.unanswered
                    answer = await self.backend.release(hold.grant, tombstone, deadline)
                    results.insert(0, answer)
        except Unavailable:
            pass  # the keeper goes on with what has no answer
        silent = len(ours) - len(results)
        for hold, result in zip(ours[silent:], results, strict=True):
            if not isinstance(result, Unknown):
                self.keeper.settle(hold.claim)
            if isinstance(result, AlreadyLost):
                hold.end = result.reason
        lost = next((hold for hold in holds if hold.lost), None)
        for hold in ours:
            if lost is not None and not hold.lost:
                hold.end = lost.as_one(lost.end)
            self.keeper.owe(hold.claim)  # what is settled is not
            hold.announce(self.port)
        return lost is None

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

    __slots__ = ("claim", "engine", "entered", "given_up", "waits", "want")

    def __init__(self, engine: Engine, want: Want) -> None:
        self.engine = engine
        self.want = want
        self.claim = want.claim(new_owner(), engine.identity)
        self.entered: Hold | None = None  # the hold that was entered again instead
        self.given_up = False  # by another thread or task than runs it: it must ask no more
        self.waits = False  # in line, and nothing is being asked

    def give_up(self) -> bool:
        """Told by another thread or task; True if a request of it may be under way. What it has in
        the store is then the caller's to withdraw: that also ends its waiting."""
        self.given_up = True
        return self.claim.unanswered or not self.waits

    def abandon(self) -> None:
        """Never blocks and may be called whatever happened, more than once."""
        if self.entered is not None:
            self.engine.keeper.drop(self.entered, self)
        self.engine.keeper.abandon(self.claim)

    def own(self) -> Hold | None:
        return self.engine.own(self.want)

    def begin(self) -> bool:
        """Announce the claim before the store hears of it; False if it must not any more."""
        engine, keeper = self.engine, self.engine.keeper
        check_may_wait(engine.port, self.want.name)
        keeper.begin(self.claim)
        # Looked at after announcing, so close() either stops us or sees us; and so does the exit.
        if engine.closed or keeper.exiting or self.given_up:
            keeper.settle(self.claim)
            return False
        return True

    async def refuse(self) -> None:
        """The client was closed. Or the interpreter exits: a daemon thread then asks for nothing
        any more, and need not be told; in the thread that exits it is somebody's last words, a
        handler or a finaliser, which must not keep it."""
        port, exiting = self.engine.port, self.engine.keeper.exiting
        if exiting is not None and exiting is not port.context():
            await port.sleep(DAY)
        if self.given_up:
            raise GivenUp
        if exiting is not None:
            raise Closed("the interpreter is exiting, and what this client held was given back")
        raise Closed("the client was closed while this acquire was under way")

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        """A hold, or who was in the way when time ran out. `timeout` < 0 waits for ever."""
        engine, want = self.engine, self.want
        if want.on_lost is not None:
            engine.port.prepare_call()
        if want.reentrant:
            hold = await self._reenter()
            if hold is not None:
                return hold
        if blocking and want.mode is Mode.EXCLUSIVE and engine.reentry.readers:
            engine.reentry.check_upgrade(want.name, engine.port.context())
        if not self.begin():
            await self.refuse()
        deadline = deadline_of(engine.port, timeout) if blocking else math.inf
        # The uncontended path: one attempt, one answer.
        try:
            sent, result = await ask(engine, self.claim, blocking, deadline)
        except HoldfastError:  # refused before anything was asked of the store: nothing is owed
            if not self.claim.unanswered:  # else it was, as one of several (`toolbox/multi.py`)
                engine.keeper.settle(self.claim)
            raise
        if isinstance(result, Grant) and self.usable(result):
            outcome: Hold | Busy = self.hold(result, sent)
        elif isinstance(result, Busy) and not (blocking or self.claim.unanswered):
            engine.keeper.settle(self.claim)
            outcome = result
        else:
            outcome = await Waiting(self, blocking, deadline).until_granted(result, sent)
        if engine.closed or engine.keeper.exiting:
            await self.refuse()
        return outcome

    def usable(self, grant: Grant) -> bool:
        """Not if it was over when it came, or withdrawn while it was on its way."""
        return self.engine.port.now() < grant.until and self.engine.keeper.wants(self.claim)

    def hold(self, grant: Grant, sent: float) -> Hold:
        engine, want = self.engine, self.want
        port = engine.port
        hold = Hold(grant, sent, want.renew_every, port.random(), engine.incarnation)
        if want.on_lost is not None:
            hold.listen(self, want.on_lost, port)
        engine.keeper.add(hold, sent)
        if want.reentrant or want.mode is Mode.SHARED:
            with port.mutex():
                if want.reentrant:
                    hold.shares = [self]
                    engine.reentry.remember(hold, port.context())
                if want.mode is Mode.SHARED:
                    engine.reentry.reads(hold, port.context())
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
            hold.listen(self, want.on_lost, engine.port)
        return hold
