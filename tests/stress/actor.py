"""One who wants locks: what a thread, a task and a forked child have in common.

Contract: an actor plans an acquire, writes down that it asks, and lives through what it got as a
generator of pauses, so that a thread sleeps and a task awaits between the same steps. It looks at
`held` after every pause, as a careful client does, and writes to the resource; a careless one
writes without having looked, or when it is done, which is what fencing is for. What must not be is
a line on stderr, by `problem`; whoever runs the workers takes every line there for a violation.
Partners: `worker.py`, `child.py`; `record.py`, `resource.py`.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

import holdfast
from holdfast import aio
from holdfast.types import Mode
from tests.stress.record import NAMES, Kind, Log, Record, now
from tests.stress.resource import Resource

__all__ = ["LONGEST", "Actor", "Lease", "Ledger", "Plan", "problem"]

Lease: TypeAlias = holdfast.Lease | holdfast.Permit | aio.Lease | aio.Permit

SHORTEST = 0.5
LONGEST = 3.0
"""Seconds of ttl."""

_NEEDS = {"rw": Mode.SHARED, "semaphore": Mode.PERMITS}
"""What a store must have for names of such a kind."""


class Plan(NamedTuple):
    """One acquire, and what will be done with it."""

    name: int
    mode: Mode
    permits: int
    limit: int
    ttl: float
    renew: bool
    fair: bool
    timeout: float  # -1 for ever, 0 not at all
    cancel: float  # a task's: after so many seconds, if it still waits; 0: never
    work: float  # seconds of holding
    careless: bool
    late: float  # so long after the release one more write arrives; 0: none

    @property
    def text(self) -> str:
        return NAMES[self.name].text


class Ledger:
    """What all actors of a process share."""

    def __init__(
        self,
        log: Log,
        resource: Resource,
        prefix: str,
        modes: Collection[Mode] = tuple(Mode),
        forgetful: bool = False,
    ) -> None:
        """`modes`: what the store has; `forgetful`: it may say that it has forgotten a lease."""
        self.modes = modes
        self.forgetful = forgetful
        self.weights = [
            name.weight if _NEEDS.get(name.kind, Mode.EXCLUSIVE) in modes else 0 for name in NAMES
        ]
        self.log = log
        self.resource = resource
        self.prefix = prefix
        self.numbers = itertools.count(1)
        self.leases: dict[int, Lease] = {}  # those held now


class Actor:
    def __init__(self, ledger: Ledger, seed: str) -> None:
        self.ledger = ledger
        self.random = random.Random(seed)

    def plan(self, name: int | None = None) -> Plan:
        chance = self.random.random
        if name is None:
            name = self.random.choices(range(len(NAMES)), self.ledger.weights)[0]
        kind, limit = NAMES[name].kind, NAMES[name].limit
        mode, permits = Mode.EXCLUSIVE, 1
        if kind == "rw" and chance() < 0.7:
            mode = Mode.SHARED
        elif kind == "semaphore":
            mode = Mode.PERMITS
            permits = self.random.randint(1, limit - 1)
        ttl = self.random.uniform(SHORTEST, LONGEST if chance() < 0.3 else 2 * SHORTEST)
        renew, careless = chance() < 0.7, chance() < 0.3
        work = self.random.choices(
            (chance() * 0.001, 0.001 + chance() * 0.007, 0.008 + chance() * 0.04),
            (76, 20, 4),
        )[0]
        if chance() < 0.0008:  # several renewals long
            ttl, renew, work = SHORTEST, True, 0.6 + chance()
        elif chance() < 0.002:  # longer than the lease
            ttl, renew, work, careless = SHORTEST, False, 0.4 + 0.4 * chance(), True
        timeout = self.random.choices((-1.0, 0.0, chance() * 0.05, chance() * 2), (48, 12, 25, 15))
        cancel = chance() * 0.1 if chance() < 0.1 else 0.0
        fair = chance() < 0.9
        late = chance() * 0.02 if mode is Mode.EXCLUSIVE and chance() < 0.03 else 0.0
        return Plan(
            name, mode, permits, limit, ttl, renew, fair, timeout[0], cancel, work, careless, late
        )

    def lock(self, locks: holdfast.Locks, plan: Plan) -> holdfast.Lock | holdfast.Semaphore:
        name = self.ledger.prefix + plan.text
        options = holdfast.LockOptions(ttl=plan.ttl, renew=plan.renew, fair=plan.fair)
        match NAMES[plan.name].kind:
            case "lock":
                return locks.lock(name, **options)
            case "semaphore":
                return locks.semaphore(name, plan.limit, take=plan.permits, **options)
        both = locks.rwlock(name, **options)
        return both.read() if plan.mode is Mode.SHARED else both.write()

    def task_lock(self, locks: aio.Locks, plan: Plan) -> aio.Lock | aio.Semaphore:
        name = self.ledger.prefix + plan.text
        options = aio.AioLockOptions(ttl=plan.ttl, renew=plan.renew, fair=plan.fair)
        match NAMES[plan.name].kind:
            case "lock":
                return locks.lock(name, **options)
            case "semaphore":
                return locks.semaphore(name, plan.limit, take=plan.permits, **options)
        both = locks.rwlock(name, **options)
        return both.read() if plan.mode is Mode.SHARED else both.write()

    # -- what is written down ---------------------------------------------------------------------

    def asks(self, plan: Plan) -> int:
        """The number of the acquire that is called next."""
        number = next(self.ledger.numbers)
        blocks = plan.timeout != 0
        self.ledger.log.write(Record(Kind.ASKED, now(), number, plan.name, flag=blocks))
        return number

    def gave_up(self, number: int, unanswered: bool = False) -> None:
        self.ledger.log.write(Record(Kind.GAVE_UP, now(), number, flag=unanswered))

    def hold(self, number: int, plan: Plan, lease: Lease) -> Iterator[float]:
        """From when acquire returned until just before release is called."""
        begun = now()
        until = deadline(lease)
        fence = lease.fence
        log, leases = self.ledger.log, self.ledger.leases
        log.write(
            Record(
                Kind.BEGUN, begun, number, plan.name, plan.mode, plan.permits, plan.limit,
                fence=fence, deadline=until,
            )
        )  # fmt: skip
        leases[number] = lease
        held = True
        try:
            while held or plan.careless:
                moment = now()
                held = lease.held
                later = deadline(lease)
                if held and moment >= later:
                    problem(f"{plan.text}: held {moment - later:.6f} s after its deadline")
                if not held:
                    self.lost(plan, lease)
                if later > until:
                    until = later
                    log.write(Record(Kind.EXTENDED, moment, number, deadline=until))
                if moment >= begun + plan.work:
                    break
                yield min(begun + plan.work - moment, plan.ttl / 8)
            if held or plan.careless:
                self.write(number, plan, lease)
        finally:
            leases.pop(number, None)
            lost = not lease.held
            until = deadline(lease)
            log.write(Record(Kind.ENDED, now(), number, flag=lost, deadline=until))

    def write(self, number: int, plan: Plan, lease: Lease) -> None:
        """To what the lock protects, if it can be protected by tokens."""
        if plan.mode is Mode.EXCLUSIVE:
            fence = lease.fence
            assert fence is not None
            if not self.ledger.resource.write(plan.name, fence):
                self.ledger.log.write(Record(Kind.REFUSED, now(), number))

    def lost(self, plan: Plan, lease: Lease) -> None:
        """Nobody evicts here, so only its time can end a lease; or a store that forgets. Of a
        session that somebody ended, who did it knows the moment."""
        moment = now()
        early = deadline(lease) - moment
        if early > 0 and not self.ledger.forgetful:
            why = f"{plan.text} ({lease._hold.end})"
            problem(f"{why}: lost {early:.6f} s before its deadline, at {moment:.6f}")

    def pause(self) -> float:
        return self.random.random() * 0.004 if self.random.random() < 0.3 else 0.0


def deadline(lease: Lease) -> float:
    """The local one, also after it has passed; no public attribute says that."""
    hold = lease._hold
    return min(hold.until, hold.certain_until)


def problem(text: str) -> None:
    os.write(2, f"{text}\n".encode())
