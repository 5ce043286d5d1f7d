"""The crash detector and its clients under random schedules, on a fake clock.

The real `core/vouching.py` and `sentinel/detector.py` on a model of a store: requests and answers
that are slow, lost or late, links that are killed, hosts and detectors that are paused, die, or are
cut off. Whatever happens, nothing is freed that its client believes to hold, or has not been told
of unless it stood still. That each rule is needed is shown by the mutants 170 and following.

Over 400 lines: the model and what it must never show are of use only together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Coroutine, Sequence
from typing import Any, TypeVar, cast

import pytest

from holdfast.core.presence import Detectable, Look, Roll, Suspect
from holdfast.core.vouching import Vouched
from holdfast.errors import HoldfastError, Unavailable
from holdfast.sentinel.detector import Detector
from holdfast.testing.world import Fiber, Host, Park, World, WorldPort
from holdfast.types import Busy, Claim, Grant, Lost, Released, Renewed, Unknown

pytestmark = pytest.mark.req("R23", "law 1", "law 5")

T = TypeVar("T")
GRACE, TTL = 1.0, 1000.0


class Connection:
    def __init__(self, presence: str) -> None:
        self.presence = presence
        self.alive = True


class Held:
    def __init__(self, client: Client, claim: Claim, stamp: int) -> None:
        self.client, self.claim, self.stamp = client, claim, stamp


class Store:
    """One server, and the network around it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.slow = dice.choice((0.0, 0.1, 0.5))  # part of its messages
        self.world = World()
        self.net = Host(self.world, "net")
        self.port = WorldPort(self.net)
        self.connections: list[Connection] = []
        self.held: dict[str, Held] = {}
        self.stamps = 0
        self.ground = 0
        self.cut: set[Host] = set()
        self.freed = 0
        self.wrong: list[str] = []

    def delay(self) -> float:
        slow = self.dice.random() < self.slow
        return (0.25 if slow else 0.002) * self.dice.random()

    async def ask(self, host: Host, request: Callable[[], T], deadline: float) -> T:
        """Executed when it arrives, though nobody may wait for the answer any more."""
        answers: list[T | Exception] = []
        lost = host in self.cut

        async def travel() -> None:
            await self.port.sleep(self.delay())
            if lost:
                return
            try:
                answer: T | Exception = request()
            except Unavailable as error:
                answer = error
            await self.port.sleep(self.delay())
            if host not in self.cut:
                answers.append(answer)

        self.world.spawn(self.net, travel(), "travel")
        await Park(lambda: bool(answers), deadline)
        if not answers:
            raise Unavailable("no answer")
        answer = answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cuts(self, share: float) -> bool:
        """Whether one of a client's connections is cut, of which this share is."""
        return True

    # -- what requests do -------------------------------------------------------------------------

    def take(self, client: Client, claim: Claim) -> bool:
        there = self.held.get(claim.name)
        if there is None:
            self.stamps += 1
            self.held[claim.name] = Held(client, claim, self.stamps)
            return True
        return there.claim.owner == claim.owner

    def renew(self, claim: Claim) -> bool:
        there = self.held.get(claim.name)
        if there is None or there.claim.owner != claim.owner:
            return False
        self.stamps += 1
        there.stamp = self.stamps
        return True

    def leave(self, claim: Claim) -> None:
        there = self.held.get(claim.name)
        if there is not None and there.claim.owner == claim.owner:
            del self.held[claim.name]

    def free(self, suspect: Suspect) -> bool:
        there = self.held.get(suspect.name)
        if there is None or (there.claim.owner, there.stamp) != (suspect.token, suspect.stamp):
            return False
        client, owner = there.client, there.claim.owner
        now = self.world.time
        if client.certain.get(owner, -math.inf) > now:
            self.wrong.append(f"{now:.3f}: {suspect.name} was freed, and {client.name} held it")
        elif owner in client.certain and not client.stood_still(now):
            self.wrong.append(f"{now:.3f}: {suspect.name} was freed, {client.name} was not told")
        del self.held[suspect.name]
        self.freed += 1
        return True


class Link:
    def __init__(self, store: Store, host: Host, connection: Connection) -> None:
        self._store, self._host, self._connection = store, host, connection

    def _touch(self) -> None:
        if not self._connection.alive:
            raise Unavailable("the link is cut")

    async def ping(self, deadline: float) -> None:
        self._touch()
        await self._store.ask(self._host, self._touch, deadline)

    async def rest(self, until: float) -> None:
        connection = self._connection
        await Park(lambda: not connection.alive and self._host not in self._store.cut, until)
        if self._host not in self._store.cut:
            self._touch()

    def cut(self) -> None:
        self._connection.alive = False

    def close(self) -> None:
        self._connection.alive = False  # at once, though the server hears of it later: the worst


class Inner:
    """As much of a backend as claims need."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client

    def open(self, port: WorldPort, signals: object) -> None:
        self._port = port

    def _ask(self, request: Callable[[], T], deadline: float) -> Coroutine[Any, Any, T]:
        return self._store.ask(self._client.host, request, deadline)

    async def attempt(self, claim: Claim, queue: bool, deadline: float) -> Grant | Busy | Unknown:
        sent = self._port.now()
        try:
            taken = await self._ask(lambda: self._store.take(self._client, claim), deadline)
        except Unavailable as error:
            return Unknown(str(error))
        return Grant(claim, sent + claim.ttl) if taken else Busy()

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> list[Renewed | Lost | Unknown]:
        sent = self._port.now()

        def renew() -> list[Renewed | Lost | Unknown]:
            return [
                Renewed(sent + TTL) if self._store.renew(grant.claim) else Lost("gone")
                for grant in grants
            ]

        try:
            return await self._ask(renew, deadline)
        except Unavailable as error:
            return [Unknown(str(error))] * len(grants)

    async def release(self, grant: Grant, tombstone: bool, deadline: float) -> Released | Unknown:
        return await self.withdraw(grant.claim, tombstone, deadline)

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        try:
            await self._ask(lambda: self._store.leave(claim), deadline)
        except Unavailable as error:
            return Unknown(str(error))
        return Released()

    async def appear(self, presence: str, deadline: float) -> Link:
        def connect() -> Connection:
            connection = Connection(presence)
            self._store.connections.append(connection)
            return connection

        connection = await self._ask(connect, deadline)
        return Link(self._store, self._client.host, connection)


class Client:
    """A host with one client, which takes and leaves one lock; and what it believes."""

    inner = Inner

    def __init__(self, store: Store, number: int) -> None:
        self.name = f"client {number}"
        self.store = store
        self.host = Host(store.world, self.name)
        self.presence = f"{number}/{GRACE:g}"
        self.certain: dict[str, float] = {}
        self.paused: list[tuple[float, float]] = []
        self.lost_leases = 0
        self._owners = 0
        self._port = WorldPort(self.host)
        inner = cast(Detectable, self.inner(store, self))
        self._backend = Vouched(inner, self.presence, GRACE)
        self._backend.open(cast(Any, self._port), self)
        store.world.spawn(self.host, self._live(), self.name)

    def stood_still(self, now: float) -> bool:
        """In the last grace, so that it cannot have heard of anything."""
        return self.host.crashed or any(end > now - GRACE for _, end in self.paused)

    def check(self) -> None:
        """What it believes to hold, it holds."""
        now, store = self.store.world.time, self.store
        owners = {held.claim.owner for held in store.held.values()}
        for owner, until in self.certain.items():
            if until > now and self.host.running and owner not in owners:
                store.wrong.append(f"{now:.3f}: {owner} is gone, and {self.name} believes in it")

    # Signals
    def lost(self, owner: str, reason: str) -> None:
        if self.certain.pop(owner, None) is not None:
            self.lost_leases += 1

    def certain_until(self, owner: str, moment: float) -> None:
        if owner in self.certain:
            self.certain[owner] = moment

    async def _live(self) -> None:
        dice, port, backend = self.store.dice, self._port, self._backend
        while True:
            self._owners += 1
            claim = Claim(f"lock {dice.randrange(3)}", f"{self.name}#{self._owners}", ttl=TTL)
            try:
                result = await backend.attempt(claim, False, port.now() + 2)
            except HoldfastError:
                result = Busy()
            if isinstance(result, Grant):
                self.certain[claim.owner] = result.certain_until
                # What was said while it was on its way, as the keeper's `add` heeds it.
                if claim.owner in backend._held:
                    self.certain[claim.owner] = max(result.certain_until, backend._certain)
                await self._hold(result)
            elif isinstance(result, Unknown):
                await self._withdraw(claim)
            await port.sleep(dice.random() / 5)

    async def _hold(self, grant: Grant) -> None:
        dice, port, owner = self.store.dice, self._port, grant.claim.owner
        over = port.now() + dice.choice((0.1, 3.0, 10.0))
        while port.now() < over and owner in self.certain:
            await port.sleep(dice.random())
            if dice.random() < 0.1:
                results = await self._backend.renew([grant], port.now() + 1)
                if isinstance(results[0], Lost):
                    self.certain.pop(owner, None)
        self.certain.pop(owner, None)
        await self._withdraw(grant.claim)

    async def _withdraw(self, claim: Claim) -> None:
        while not isinstance(
            await self._backend.withdraw(claim, True, self._port.now() + 1), Released
        ):
            await self._port.sleep(0.05)


class ModelRoll:
    complete = True

    def __init__(self, store: Store, host: Host) -> None:
        self._store, self._host = store, host
        self._port = WorldPort(host)

    async def look(self, deadline: float) -> Look:
        def look() -> Look:
            present = {c.presence: None for c in self._store.connections if c.alive}
            return Look(self._store.ground, present)

        return await self._store.ask(self._host, look, deadline)

    async def claims(self, present: Container[str], deadline: float) -> list[Suspect]:
        def search() -> list[Suspect]:
            return [
                Suspect(name, held.client.presence, held.claim.owner, {}, held.stamp,
                        held.claim.owner)
                for name, held in self._store.held.items()
                if held.client.presence not in present
            ]  # fmt: skip

        return await self._store.ask(self._host, search, deadline)

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        if self._store.dice.random() < 0.3:  # stopped between the look and this
            await self._port.sleep(self._store.dice.random() * 3)
        deadline = max(deadline, self._port.now() + 1)
        return await self._store.ask(
            self._host, lambda: [self._store.free(suspect) for suspect in suspects], deadline
        )

    async def close(self) -> None: ...


def watch(store: Store, number: int, kind: Any) -> Host:
    host = Host(store.world, f"detector {number}")
    port = WorldPort(host)
    detector = Detector(cast(Any, port), cast(Roll, kind(store, host)), lambda *words, **more: None)

    async def live() -> None:
        while True:
            try:
                again = await detector.turn()
            except Unavailable:
                again = port.now() + 0.1
            await port.sleep(again - port.now())

    store.world.spawn(host, live(), host.name)
    return host


def pause(store: Store, host: Host, seconds: float) -> None:
    host.paused_until = store.world.time + seconds


async def trouble(store: Store, clients: list[Client], detectors: list[Host]) -> None:
    """Somebody who does not wish us well."""
    dice, world = store.dice, store.world
    weights = [dice.random() ** 2 for _ in range(6)]  # each time another kind of trouble
    rhythm = dice.choice((0.05, 0.2, 0.5, 2.0))
    while True:
        await store.port.sleep(rhythm * dice.random())
        client = dice.choice(clients)
        match dice.choices(range(6), weights)[0]:
            case 0:  # also in bursts: a link may live between two looks only
                some = dice.random()  # where there are several, not always all of them
                for connection in store.connections:
                    if connection.presence == client.presence and store.cuts(some):
                        connection.alive = False
            case 1:
                seconds = dice.choice((0.2, 0.5, 0.8, 1.1, 3.0)) * dice.random()
                pause(store, client.host, seconds)
                client.paused.append((world.time, world.time + seconds))
            case 2:
                pause(store, dice.choice(detectors), dice.choice((0.3, 1.2, 4.0)) * dice.random())
            case 3:
                store.cut ^= {client.host}
            case 4:
                store.cut -= {other.host for other in clients}
            case _:
                store.ground += dice.random() < 0.2
        store.connections = [c for c in store.connections if c.alive]


def play(
    seed: int, seconds: float, detectors: int = 2, kinds: tuple[Any, ...] = (Store, Client, None)
) -> Store:
    stores, of_clients, rolls = kinds
    store: Store = stores(random.Random(seed))
    clients = [of_clients(store, number) for number in range(3)]
    world = store.world
    watchers = [watch(store, number, rolls or ModelRoll) for number in range(detectors)]
    world.spawn(store.net, trouble(store, clients, watchers), "trouble")
    killed = False
    while world.time < 1000 + seconds and not store.wrong:
        runnable = world.runnable()
        if runnable:
            fiber: Fiber = store.dice.choice(runnable)
            fiber.step()
            if fiber.error is not None:
                raise fiber.error
            for client in clients:
                client.check()
            continue
        world.time = world.next_moment()
        if not killed and world.time > 1000 + seconds / 2:
            killed = True
            world.crash(clients[0].host)
            for connection in store.connections:
                if connection.presence == clients[0].presence:
                    connection.alive = False
    for left in world.fibers:
        left.kill()
    return store


def test_nothing_is_freed_that_somebody_believes_to_hold() -> None:
    freed = 0
    for seed in range(40):
        store = play(seed, 30)
        assert store.wrong == [], f"seed {seed}"
        freed += store.freed
    assert freed > 20, "nothing was tried"
