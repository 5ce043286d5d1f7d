"""A Hypothesis state machine: several clients of one memory store against a tiny model of it.

Contract: whatever is asked, in whatever order and at whatever time, the backend answers as the
model does, and what clients believe at any moment is compatible. The model is the store written
naively: lists, no heaps, no shortcuts. Time and the wall clock are fake; the wall clock also jumps.

A failure prints the steps that led to it, as a program. Runs are the same every time; for a longer,
random search: HOLDFAST_EXAMPLES=5000 pytest tests/unit/test_machine.py (it prints its seed's blob).

Over 400 lines: a state machine is one class.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from holdfast.backends.local import LATER, Gone, Held, InLine
from holdfast.backends.memory import MemoryBackend, Store
from holdfast.ports.bare import ThreadEvent
from holdfast.ports.thread import drive
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Cell,
    CellConflict,
    Claim,
    Grant,
    Lost,
    Mode,
    Released,
    Renewed,
)

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "0"))
NAMES = ("a", "b")
LIMIT = 3
LONGEST = 4.0
START = 1000.0

names = st.sampled_from(["a", "a", "a", "b"])  # where claims meet, there is something to see
queues = st.sampled_from([True, True, True, False])
ttls = st.sampled_from([0.5, 1.0, 2.0, LONGEST])
tombstones = st.booleans()


# -- the model -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Place:
    """A claim in the line or in the lock."""

    claim: Claim
    client: int
    expires: float


@dataclass
class ModelCell:
    cell: Cell | None = None
    expires: float = math.inf
    fence: int = 0

    def at(self, now: float) -> Cell | None:
        return self.cell if now < self.expires else None


@dataclass
class Model:
    now: float = START
    holders: dict[str, list[Place]] = field(default_factory=lambda: {n: [] for n in NAMES})
    queue: dict[str, list[Place]] = field(default_factory=lambda: {n: [] for n in NAMES})
    buried: dict[str, float] = field(default_factory=dict)
    cells: dict[str, ModelCell] = field(default_factory=lambda: {n: ModelCell() for n in NAMES})
    called: dict[str, float] = field(default_factory=dict)
    """Owner -> expiry of the grant that came while it stood in line."""

    def admits(self, claim: Claim) -> bool:
        held = [place.claim for place in self.holders[claim.name]]
        if claim.mode is Mode.EXCLUSIVE or any(c.mode is not claim.mode for c in held):
            return not held
        return claim.mode is Mode.SHARED or sum(c.permits for c in held) + claim.permits <= LIMIT

    def move_on(self, name: str) -> None:
        """Drop holders whose time is over, then let in from the front."""
        self.holders[name] = [p for p in self.holders[name] if self.now < p.expires]
        queue = self.queue[name]
        while queue and (queue[0].expires <= self.now or self.admits(queue[0].claim)):
            place = queue.pop(0)
            if self.now < place.expires:
                place.expires = self.now + place.claim.ttl
                self.holders[name].append(place)
                self.called[place.claim.owner] = place.expires

    def holding(self, claim: Claim) -> Place | None:
        return next((p for p in self.holders[claim.name] if p.claim.owner == claim.owner), None)

    def waiting(self, claim: Claim) -> Place | None:
        return next((p for p in self.queue[claim.name] if p.claim.owner == claim.owner), None)

    def attempt(self, claim: Claim, queue: bool, client: int) -> Place | int | None:
        """A place in the lock, or how many are ahead in line (None: not told)."""
        if self.now < self.buried.get(claim.owner, 0):
            return None
        self.move_on(claim.name)
        held, waits = self.holding(claim), self.waiting(claim)
        if held is not None:
            return held
        line = self.queue[claim.name]
        if waits is None and self.admits(claim) and (not line or not claim.fair):
            place = Place(claim, client, self.now + claim.ttl)
            self.holders[claim.name].append(place)
            return place
        if waits is not None:
            waits.expires = self.now + claim.ttl
        elif queue:
            line.append(Place(claim, client, self.now + claim.ttl))
            return len(line) - 1
        return None

    def look(self, claim: Claim) -> Place | bool:
        """A place in the lock, or whether it is in line."""
        waits = self.waiting(claim)
        if waits is not None:
            waits.expires = self.now + claim.ttl
        self.move_on(claim.name)
        return self.holding(claim) or self.waiting(claim) is not None

    def renew(self, claim: Claim) -> bool:
        held = self.holding(claim)
        if held is None or self.now >= held.expires:
            return False
        held.expires = max(held.expires, self.now + claim.ttl)
        return True

    def remove(self, claim: Claim, *, line: bool, tombstone: bool) -> bool:
        """True if it held until now."""
        if tombstone:
            self.buried[claim.owner] = self.now + claim.ttl
        held = self.holding(claim)
        for places in (self.holders[claim.name], *([self.queue[claim.name]] if line else [])):
            places[:] = [p for p in places if p.claim.owner != claim.owner]
        self.move_on(claim.name)
        return held is not None and self.now < held.expires


# -- the machine -----------------------------------------------------------------------------------


class FakePort:
    """As much of a port as a backend needs that never waits."""

    asynchronous = False
    event = ThreadEvent

    def __init__(self, model: Callable[[], Model]) -> None:
        self._model = model

    def now(self) -> float:
        return self._model().now

    def random(self) -> float:
        return 0.5

    def incarnation(self) -> int:
        return 0

    def nested(self) -> bool:
        return False

    def mutex(self) -> AbstractContextManager[None]:
        return nullcontext()

    def context(self) -> object:
        return self

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")

    def task(self, main: Any, farewell: Any, name: str) -> Any:
        raise AssertionError("nothing here runs in the background")

    def waits(self) -> None:
        raise AssertionError("nothing here waits")

    def prepare_call(self) -> None:
        raise AssertionError("nothing here calls back")

    def call(self, callback: Any, argument: Any) -> None:
        raise AssertionError("nothing here calls back")


class NoSignals:
    def lost(self, owner: str, reason: str) -> None: ...

    def certain_until(self, owner: str, moment: float) -> None: ...


class MemoryMachine(RuleBasedStateMachine):
    claims = Bundle("claims")

    @initialize()
    def start(self) -> None:
        self.model = Model()
        self.wall = 1e6
        self.store = Store(lambda: self.model.now, lambda: self.wall)
        port = FakePort(lambda: self.model)
        self.clients = [MemoryBackend(self.store) for _ in range(3)]
        for client in self.clients:
            client.open(port, NoSignals())
        self.owners = 0
        self.all: list[tuple[int, Claim]] = []
        self.believed: dict[str, tuple[Claim, float]] = {}  # what clients were told and may rely on
        self.fences: dict[str, list[tuple[Mode, int]]] = {name: [] for name in NAMES}
        self.granted: set[str] = set()
        self.versions: dict[str, int] = {}

    def believe(self, claim: Claim, until: float, fence: int | None) -> None:
        """A client was told that it holds."""
        self.believed[claim.owner] = claim, until
        if claim.owner in self.granted:
            return
        self.granted.add(claim.owner)
        if claim.mode is Mode.PERMITS:
            assert fence is None
            return
        assert fence is not None
        self.fences[claim.name].append((claim.mode, fence))

    def collect(self) -> None:
        """Whoever was called while waiting hears of it: `wait` with no time left is a look into
        the mailbox."""
        for client, claim in self.all:
            if claim.owner in self.model.called:
                now = self.model.now
                heard = drive(self.clients[client].wait(claim, Busy(token=math.inf), now))
                assert heard is not None, "the call did not come"
                assert heard.until == self.model.called.pop(claim.owner)
                self.believe(claim, heard.until, heard.fence)

    # -- claims ------------------------------------------------------------------------------------

    @rule(
        target=claims,
        client=st.integers(0, 2),
        name=names,
        mode=st.sampled_from(Mode),
        ttl=ttls,
        fair=st.booleans(),
        permits=st.integers(1, LIMIT),
        queue=queues,
    )
    def ask(
        self, client: int, name: str, mode: Mode, ttl: float, fair: bool, permits: int, queue: bool
    ) -> tuple[int, Claim]:
        self.owners += 1
        info = {"host": f"h{client}", "pid": "1"}
        claim = Claim(name, f"owner-{self.owners}", mode, ttl, fair, permits, LIMIT, info)
        self.all.append((client, claim))
        self.attempt((client, claim), queue)
        return client, claim

    @rule(who=claims, queue=queues)
    def ask_again(self, who: tuple[int, Claim], queue: bool) -> None:
        """The same owner: a repeated request, or one that arrives late."""
        self.attempt(who, queue)

    def attempt(self, who: tuple[int, Claim], queue: bool) -> None:
        client, claim = who
        buried = self.model.now < self.model.buried.get(claim.owner, 0)
        expected = self.model.attempt(claim, queue, client)
        answer = drive(self.clients[client].attempt(claim, queue, math.inf))
        if isinstance(expected, Place):
            assert isinstance(answer, Grant)
            self.model.called.pop(claim.owner, None)
            assert answer.until == min(expected.expires, self.model.now + claim.ttl)
            self.believe(claim, answer.until, answer.fence)
        elif buried:
            assert isinstance(answer, Buried)
        else:
            assert isinstance(answer, Busy)
            assert answer.ahead == expected
            assert bool(answer.holder) == bool(self.model.holders[claim.name])
        self.collect()

    @rule(who=claims)
    def look(self, who: tuple[int, Claim]) -> None:
        claim = who[1]
        expected = self.model.look(claim)
        answer = self.store.look(claim)
        if isinstance(expected, Place):
            assert isinstance(answer, Held)
            assert answer.expires == expected.expires
        elif expected:
            assert isinstance(answer, InLine)
            ends = [p.expires for p in self.model.holders[claim.name]]
            first = self.model.queue[claim.name][0].claim is claim
            # Never sleeps through the moment at which the line could move on by itself.
            assert answer.look_at <= min(ends) + (0 if first else LATER)
        else:
            assert isinstance(answer, Gone)
        self.collect()

    @rule(who=st.lists(claims, min_size=1, max_size=4), ttl=st.one_of(st.none(), ttls))
    def renew(self, who: list[tuple[int, Claim]], ttl: float | None) -> None:
        if ttl is not None:  # a client that wants it for another time now: never shortens
            who = [(client, replace(claim, ttl=ttl)) for client, claim in who]
        expected = [self.model.renew(claim) for _, claim in who]
        grants = [Grant(claim, 0.0) for _, claim in who]
        answers = drive(self.clients[0].renew(grants, math.inf))
        assert [isinstance(answer, Renewed) for answer in answers] == expected
        for (_, claim), answer in zip(who, answers, strict=True):
            if isinstance(answer, Renewed):
                assert answer.until == self.model.now + claim.ttl
                if claim.owner in self.believed:
                    until = max(answer.until, self.believed[claim.owner][1])
                    self.believed[claim.owner] = claim, until
            else:
                assert isinstance(answer, Lost)
                self.believed.pop(claim.owner, None)

    @rule(who=claims)
    def oversleep(self, who: tuple[int, Claim]) -> None:
        """Exactly until the end of the lease, and then a renewal."""
        self.time_passes(who[1].ttl)
        self.renew([who], None)

    @rule(who=claims, seconds=st.sampled_from([0.0, 0.25, LONGEST]))
    def arrive_late(self, who: tuple[int, Claim], seconds: float) -> None:
        """An attempt that was under way while its claim was withdrawn."""
        self.withdraw(who, True)
        self.time_passes(seconds)
        self.attempt(who, True)

    @rule(who=claims, tombstone=tombstones)
    def release(self, who: tuple[int, Claim], tombstone: bool) -> None:
        """By the holder, by one that still waits, by one that never had it, again."""
        client, claim = who
        self.believed.pop(claim.owner, None)
        expected = self.model.remove(claim, line=False, tombstone=tombstone)
        answer = drive(self.clients[client].release(Grant(claim, 0.0), tombstone, math.inf))
        assert isinstance(answer, Released if expected else AlreadyLost)
        self.collect()

    @rule(who=claims, tombstone=tombstones)
    def withdraw(self, who: tuple[int, Claim], tombstone: bool) -> None:
        client, claim = who
        self.believed.pop(claim.owner, None)
        self.model.remove(claim, line=True, tombstone=tombstone)
        answer = drive(self.clients[client].withdraw(claim, tombstone, math.inf))
        assert isinstance(answer, Released)
        self.collect()

    @rule(name=names)
    def evict(self, name: str) -> None:
        expected = sum(self.model.now < place.expires for place in self.model.holders[name])
        for place in self.model.holders[name]:
            self.believed.pop(place.claim.owner, None)
        self.model.holders[name].clear()
        self.model.move_on(name)
        assert drive(self.clients[0].evict(name, math.inf)) == expected
        self.collect()

    @rule(prefix=st.sampled_from(["", *NAMES]))
    def inspect(self, prefix: str) -> None:
        model = self.model
        expected = {}
        for name in NAMES:
            if name.startswith(prefix):
                model.move_on(name)
                holders = [p.claim.mode for p in model.holders[name]]
                waiters = [p.claim.mode for p in model.queue[name] if model.now < p.expires]
                if holders or waiters:
                    expected[name] = holders, waiters
        found = drive(self.clients[0].inspect(prefix, False, math.inf))
        assert [lock.name for lock in found] == sorted(expected)
        assert not any(claim.owner in repr(found) for _, claim in self.all)
        for lock in found:
            seen = [c.mode for c in lock.holders], [c.mode for c in lock.waiters]
            assert seen == expected[lock.name]
        self.collect()

    # -- time --------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.25, 0.5, 1.0, 2.0, LONGEST]))
    def time_passes(self, seconds: float) -> None:
        self.model.now += seconds
        self.wall += seconds

    @rule(seconds=st.sampled_from([-3600.0, 3600.0]))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.wall += seconds

    # -- cells -------------------------------------------------------------------------------------

    @rule(
        name=names,
        value=st.one_of(st.none(), st.binary(max_size=2)),
        expect=st.sampled_from([None, "current", "none", "other"]),
        fence=st.one_of(st.none(), st.integers(1, 4)),
        ttl=st.one_of(st.none(), ttls),
    )
    def write(
        self, name: str, value: bytes | None, expect: str | None, fence: int | None, ttl: Any
    ) -> None:
        model = self.model.cells[name]
        current = model.at(self.model.now)
        version = 0 if current is None else current.version
        wanted = {None: None, "current": version, "none": 0, "other": version + 1}[expect]
        refused = wanted not in (None, version) or (fence is not None and fence < model.fence)
        answer = drive(
            self.clients[0].cell_write(
                name, value, expect=wanted, fence=fence, ttl=ttl, deadline=math.inf
            )
        )
        if refused:
            assert isinstance(answer, CellConflict)
            assert answer.current == current
            return
        assert isinstance(answer, Cell)
        assert answer.version > self.versions.get(name, 0)
        self.versions[name] = answer.version
        model.cell = None if value is None else answer
        model.expires = math.inf if ttl is None else self.model.now + ttl
        model.fence = max(model.fence, fence or 0)

    @rule(name=names)
    def read(self, name: str) -> None:
        cell = drive(self.clients[1].cell_read(name, math.inf))
        assert cell == self.model.cells[name].at(self.model.now)

    @rule(name=names, before=st.booleans())
    def watch_a_write(self, name: str, before: bool) -> None:
        """Every watcher is called once for each change, and not after it has left."""
        calls: list[str] = []

        def call() -> None:
            calls.append(name)

        self.store.cell_watch(name, call)
        if before:
            self.write(name, b"w", None, None, None)
        self.store.cell_unwatch(name, call)
        self.write(name, b"x", None, None, None)
        assert len(calls) == before

    # -- what must always be true ------------------------------------------------------------------

    @invariant()
    def what_clients_believe_is_compatible(self) -> None:
        for name in NAMES:
            believers = [
                claim
                for claim, until in self.believed.values()
                if claim.name == name and self.model.now < until
            ]
            modes = {claim.mode for claim in believers}
            assert len(modes) <= 1, "holders of different modes"
            assert modes != {Mode.EXCLUSIVE} or len(believers) == 1, "two exclusive holders"
            if modes == {Mode.PERMITS}:
                assert sum(claim.permits for claim in believers) <= LIMIT

    @invariant()
    def tokens_increase(self) -> None:
        """In the order of the grants: each writer's token is new and the largest so far; a reader
        has none that is smaller than a writer's before, or as large as a later writer's."""
        for given in self.fences.values():
            highest = 0
            for mode, fence in given:
                assert fence > highest if mode is Mode.EXCLUSIVE else fence >= highest
                highest = max(highest, fence)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for client, claim in self.all:
            drive(self.clients[client].withdraw(claim, False, math.inf))
        self.model.now += LONGEST
        assert self.store.leftovers() == []
        assert [client._tickets for client in self.clients] == [{}, {}, {}]


TestMemoryMachine = pytest.mark.req(
    "R1", "R3", "R6", "R8", "R10", "B1", "cells", "law 3", "law 6", "law 7"
)(MemoryMachine.TestCase)
TestMemoryMachine.settings = settings(
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 300,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
