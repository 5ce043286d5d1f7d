"""The keeper: renews every lease of a client, and pays the clean-ups still owed. One loop.

Laws kept here: 3 (a withdrawal that could not be confirmed is owed until it is), 4 (whatever is
interrupted is handed over to this loop by a call that never blocks), 5 (a lease that can no longer
be trusted is lost at its local deadline, even if every connection hangs: each call this loop makes
is bounded by one tick) and 6 (one batched renewal per interval).

Hazards: `begin`, `add`, `end`, `drop`, `abandon` and `owe` run in the user's thread, in finalisers
and in exception handlers. They use single dict operations, which are atomic, and the mutex for a
few lines, which a finaliser may enter again. Whoever takes an owner from `_holds` ends that hold,
once, however many threads race for it; and writes down why before that: Ctrl-C may strike between.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence

from holdfast.core.agenda import TICK, Agenda
from holdfast.core.backend import Backend
from holdfast.core.backoff import pause
from holdfast.core.debts import Debts
from holdfast.core.hold import RELEASED, GuardRef, Hold
from holdfast.core.port import NoThread, Port, Task, why_not
from holdfast.errors import Unavailable
from holdfast.types import Claim, Lost, Renewed, Unknown

__all__ = ["BATCH", "TICK", "Keeper"]

log = logging.getLogger("holdfast")
BATCH = 1000  # renewals in one call of the backend, at most


class Keeper:
    def __init__(self, port: Port, backend: Backend) -> None:
        self._port = port
        self._backend = backend
        self._claims: dict[str, Claim] = {}  # all that the store may have something of
        self._holds: dict[str, Hold] = {}
        self._fresh: dict[str, Hold] = {}  # held, and not yet on the agenda
        self._early: dict[str, str | float] = {}  # what a backend said of a grant on its way to us
        self._agenda = Agenda()
        self._ready: deque[Hold] = deque()  # to be renewed as soon as possible
        self._owed = Debts(port, backend, self.settle)
        self.orphans: deque[GuardRef] = deque()  # leases and `with` statements that vanished
        self._left: list[tuple[Hold, object]] = []  # released where nothing may be waited for
        self._wake = port.event()
        self._looks_at = math.inf  # when the loop will look next without being woken
        self._task: Task | None = None
        self._kept = self._starting = self._stopping = self._retired = False
        self.exiting: object = None  # who exits the interpreter: what began now would stay behind

    # -- called by users' threads and tasks; never blocks -----------------------------------------

    def begin(self, claim: Claim) -> None:
        """The store will hear of this claim: it is withdrawn, whatever happens, unless settled."""
        if not self._kept:  # before there is anything to clean up: at a loop's end it is late
            self._start()  # `NoThread`: what nobody would keep is not asked for
        self._claims[claim.owner] = claim

    def begun(self, claim: Claim) -> bool:
        return claim.owner in self._claims

    def wants(self, claim: Claim) -> bool:
        """Whether it was neither withdrawn meanwhile, nor is about to be."""
        return claim.owner in self._claims and claim.owner not in self._owed

    def settle(self, claim: Claim) -> None:
        """The store is known to have nothing of this claim any more."""
        self._claims.pop(claim.owner, None)
        self._owed.pop(claim.owner, None)
        self._early.pop(claim.owner, None)

    def add(self, hold: Hold, now: float) -> None:
        """Keep this hold from now on. Before acquire returns, so no lease is ever unattended."""
        owner = hold.claim.owner
        self._holds[owner] = hold
        self._fresh[owner] = hold
        # Usually the loop looks before this is due. If it should have looked long ago, it has died.
        if hold.due < self._looks_at or self._looks_at < now - 2 * TICK:
            self.rouse()
        if self._early and (news := self._early.pop(owner, None)) is not None:
            self._heed(owner, news)

    def end(self, hold: Hold, reason: str) -> bool:
        """End this hold; False if somebody else did before. The caller announces and cleans up."""
        owner = hold.claim.owner
        with self._port.mutex():
            if owner not in self._holds:
                return False
            hold.end = hold.end or reason
            self._holds.pop(owner, None)
            self._fresh.pop(owner, None)
            hold.guards.clear()
            hold.forget()
            return True

    def leave(self, hold: Hold, share: object) -> bool:
        """Take one lease away from the hold; True if that ended it, and the store must be told.
        Where it may race with a re-entry (it was passed on), counting and ending are one step."""
        if hold.shares is None:
            return self.end(hold, RELEASED)
        with self._port.mutex():
            return not hold.leave(share) and self.end(hold, RELEASED)

    def drop(self, hold: Hold, share: object) -> None:
        """Give up one lease without waiting: forgotten, or interrupted anywhere in its release."""
        if hold.incarnation != self._port.incarnation():
            return  # law 8
        for each in hold.together or (hold,):
            self.leave(each, share)
            if each.claim.owner not in self._holds:  # it has ended, or half ended
                self._finish(each)

    def leave_later(self, hold: Hold, share: object) -> None:
        """As `drop`, by the loop: the caller must not even wait for the mutex."""
        self._left.append((hold, share))
        self._wake.set()

    def lose(self, hold: Hold, reason: str, *, gone: bool, level: int = logging.WARNING) -> None:
        """The lease is lost; `gone` says that the store said so, else it is told to forget."""
        try:
            self._lose(hold, reason, gone, level)
        except BaseException:  # Ctrl-C in the user's own look: nobody else would tell of it
            for each in hold.together or (hold,):
                self.end(each, reason)
                self._finish(each)
            raise

    def _finish(self, hold: Hold) -> None:
        """What is to be done about a hold that has ended, if it was interrupted anywhere."""
        with self._port.mutex():
            hold.guards.clear()
            hold.forget()
        hold.announce(self._port)
        self.owe(hold.claim)

    def _lose(self, hold: Hold, reason: str, gone: bool, level: int) -> None:
        if not self.end(hold, reason):
            return
        log.log(level, "lease of %r lost: %s", hold.claim.name, reason)
        # An attempt still under way could take the lock again, with nobody there to hold it: then
        # the store must be told even though it says that the lease is gone (law 3).
        if gone and not hold.claim.unanswered:
            self.settle(hold.claim)
        else:
            self.owe(hold.claim)
        hold.announce(self._port)
        for other in hold.together:  # law 5: whoever relies on all of them is told at once
            if self.end(other, hold.as_one(reason)):
                self.owe(other.claim)
                other.announce(self._port)

    def abandon(self, claim: Claim) -> None:
        """An acquire of this claim was interrupted somewhere: leave nothing of it."""
        hold = self._holds.get(claim.owner)
        if hold is not None and self.end(hold, RELEASED):
            hold.announce(self._port)
        self.owe(claim)

    def owe(self, claim: Claim) -> None:
        """Withdraw this claim soon, and again until the store confirms it; nothing if it is
        settled, or never began."""
        if claim.owner in self._claims:
            self._owed[claim.owner] = claim
            self.rouse()

    def retire(self) -> None:
        """Nobody refers to this client or its leases any more: end once nothing is owed."""
        self._retired = True
        self._wake.set()

    def rouse(self) -> None:
        task = self._task
        if task is None or not task.alive:
            why_not(self._start)  # whoever comes next tries again
        self._wake.set()

    # -- what a backend learns by itself (core.backend.Signals) -----------------------------------

    def lost(self, owner: str, reason: str) -> None:
        self._heed(owner, reason)

    def certain_until(self, owner: str, moment: float) -> None:
        self._heed(owner, moment)

    def _heed(self, owner: str, news: str | float) -> None:
        hold = self._holds.get(owner)
        if hold is None and owner in self._claims:
            # The grant may be on its way to `add`, which writes down the hold and then looks here.
            if not isinstance(self._early.get(owner), str):
                self._early[owner] = news
            hold = self._holds.get(owner)
        if hold is not None and isinstance(news, str):
            self.lose(hold, news, gone=True)
        elif hold is not None:
            hold.certain_until = float(news)

    # -- the loop ---------------------------------------------------------------------------------

    @property
    def holds(self) -> Mapping[str, Hold]:
        """What this client has, by owner; other threads change it."""
        return self._holds

    @property
    def idle(self) -> bool:
        """Nothing held, nothing owed."""
        return not self._holds and not self._owed

    @property
    def _done(self) -> bool:
        return self._stopping or (self._retired and self.idle)

    def _start(self) -> None:
        with self._port.mutex():
            if not (self._starting or self._stopping):
                if not (self._task and self._task.alive):
                    self._begin_run()
                self._kept = True  # not before: who comes meanwhile waits to hear whether it is

    def _begin_run(self) -> None:
        try:
            self._starting = True  # a finaliser inside may come here again
            self._task = self._port.task(self._run, self._farewell, "holdfast-keeper")
            self._task.start()
        except RuntimeError as error:
            log.warning("no keeper can be started, to renew leases: %s", error)
            if isinstance(error, NoThread) and not error.exiting:
                self._kept = False
                raise
        finally:
            self._starting = False

    async def _run(self) -> None:
        try:
            while not self._done:
                try:
                    self._plan()
                    while not self._done:
                        await self._round()
                except Exception:
                    # One broken renewal must not end the renewal of all others.
                    log.exception("the keeper met an unexpected error and goes on")
                    await self._port.sleep(pause(3, self._port.random(), math.inf))
        finally:
            self._looks_at = math.inf  # whoever adds a hold now starts us again
        if self._retired and not self._stopping:
            await self._backend.close()

    def _plan(self) -> None:
        """Make the agenda anew: what the last run had in its hands when it broke is not lost."""
        self._ready.clear()
        self._fresh.clear()
        self._agenda.renew(list(self._holds.values()))

    async def _round(self) -> None:
        self._look(self._port.now())
        if self._ready:
            await self._renew()
        if self._owed:
            await self._owed.pay_some(self._agenda.next())
        if self._ready:
            return
        due = min(self._next_due(), self._owed.due)
        self._looks_at = looks_at = min(self._port.now() + TICK, due)
        if self._fresh or self._done:
            return
        if not await self._wake.wait(looks_at) and self.idle and not self._fresh:
            self._looks_at = math.inf  # parked: the next add() wakes us
            if not (self._fresh or self._owed or self.orphans or self._left or self._done):
                await self._wake.wait(None)
        self._wake.clear()

    def _next_due(self) -> float:
        if len(self._agenda) > 2 * len(self._holds) + 64:  # mostly ended leases with a long ttl
            self._plan()
        return self._agenda.next()

    def _look(self, now: float) -> None:
        """Fire the losses that are due, and put in `_ready` what is due for renewal."""
        self._take_leave()
        while self.orphans:
            ref = self.orphans.popleft()
            if not ref.hold.end:
                log.warning(
                    "a lease of %r was dropped, or its `with` interrupted, without a release; "
                    "it is given back now. Use `with`, or call release()",
                    ref.hold.claim.name,
                )
            self.drop(ref.hold, ref.share)
        while self._fresh:
            try:
                fresh = self._fresh.popitem()[1]
            except KeyError:  # released meanwhile
                break
            self._agenda.put(fresh, fresh.due)
        for hold, reason in self._agenda.due(now, self._ready):
            self.lose(hold, reason, gone=False)

    def _take_leave(self) -> None:
        for left in list(self._left):
            self.drop(*left)
            try:
                self._left.remove(left)
            except ValueError:  # `close` does so, too
                pass

    async def _renew(self) -> None:
        """One batch, and then the loop looks at all deadlines again."""
        port = self._port
        sent = port.now()
        batch, later = list[Hold](), list[Hold]()
        while self._ready and len(batch) < BATCH:
            hold = self._ready.popleft()
            if hold.end:
                continue
            # The most urgent lease sets the time limit of its batch; the others need not share it.
            together = not batch or (hold.until < sent + TICK) == (batch[0].until < sent + TICK)
            (batch if together else later).append(hold)
        self._ready.extend(later)
        if not batch:
            return
        # Half of what is left: an answer that was lost must leave time for asking again. But what
        # is all but over must not leave the others without any. And where one tick was not enough,
        # as for connecting to a server far away, there are more, if nothing else is due by then.
        left = min(hold.until for hold in batch) - sent
        failures = min(max(hold.failures for hold in batch), 2)
        ticks = max(TICK, min((1 + failures) * TICK, self._agenda.next() - sent))
        deadline = sent + min(ticks, max(left / 2, TICK / 10))
        results: Sequence[Renewed | Lost | Unknown]
        try:
            results = await self._backend.renew([hold.grant for hold in batch], deadline)
        except Exception as error:
            if not isinstance(error, Unavailable):
                log.exception("a renewal failed unexpectedly; it is tried again")
            results = [Unknown(str(error))] * len(batch)
        now = port.now()
        for hold, result in zip(batch, results, strict=True):
            if hold.end:
                continue
            if isinstance(result, Lost):
                self.lose(hold, result.reason, gone=True)
                continue
            if isinstance(result, Renewed) and now < hold.until:  # what is over stays over
                hold.renewed(sent, result.until, port.random())
            else:
                left = hold.until - now
                hold.unanswered(now, pause(hold.failures + 1, port.random(), left))
            self._agenda.put(hold, hold.due)

    # -- the end ----------------------------------------------------------------------------------

    async def stop(self, deadline: float) -> None:
        """End the loop, give back everything still held, pay what can be paid until `deadline`."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task.join(deadline)
        await self._give_back(deadline)

    async def _farewell(self) -> None:
        """The interpreter exits, or the event loop ends, and nobody closed the client."""
        port = self._port
        self.exiting = None if port.asynchronous else port.context()
        try:
            for _ in range(3):  # tasks cancelled together with us come to their own clean-up first
                await port.sleep(0)
            await self._give_back(port.now() + 2 * TICK)
        finally:
            if self._holds and not self.exiting:  # taken meanwhile: it was not the loop's end
                self._task = None
                self._start()

    async def _give_back(self, deadline: float) -> None:
        self._take_leave()
        for hold in list(self._holds.values()):  # told first, before anybody else can have it
            self.lose(hold, "its client was closed", gone=False, level=logging.INFO)
        for claim in list(self._claims.values()):
            self.owe(claim)
        await self._owed.flush(deadline)
