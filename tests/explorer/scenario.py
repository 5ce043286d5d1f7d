"""One schedule: clients, their work, what goes wrong, and the choices that order it all.

Contract: `run(choices, plan)` is deterministic in its choices. Everything the core does under
threads or asyncio it does here, through the same calls as the skins make.

Over 400 lines: all that one schedule can hold, which is of use only together.
"""

from __future__ import annotations

import logging
import math
import random
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.backends.memory import MemoryBackend, Store
from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.options import LockOptions, Want, want
from holdfast.errors import LeaseLost, Unavailable
from holdfast.testing.world import Cancelled, Fiber, Host, Message, World, WorldLink, WorldPort
from holdfast.types import Buried, Busy, Claim, Grant, Mode, Unknown
from tests.explorer.history import Record, Report, violations

MAX_STEPS = 20_000
REQUEST_TIMEOUT = 2.0


@dataclass(slots=True)
class Plan:
    """What a schedule is made of. Drawn from a seed, or given by a systematic search."""

    ttl: float = 3.0
    hosts: int = 2
    workers: int = 2
    rounds: int = 2
    names: int = 1
    modes: tuple[Mode, ...] = (Mode.EXCLUSIVE,)
    limit: int = 2
    fair: bool = True
    reentrant: bool = False
    renew: bool = True
    hold_for: float = 2.0
    timeouts: tuple[float, ...] = (-1.0,)  # 0: try once
    faults: tuple[str, ...] = ()
    budget: int = 0  # how many faults may strike
    slow: float = 0.0  # how often time passes although something could be done

    @property
    def faultless(self) -> bool:
        return not self.faults

    @staticmethod
    def drawn(rng: random.Random) -> Plan:
        every = (
            "lose_request",
            "lose_reply",
            "cancel",
            "crash",
            "pause",
            "kill_keeper",
            "hang",
            "close",
            "break",
            "evict",
        )
        faults = rng.choice([(), every, every, tuple(rng.sample(every, rng.randint(1, 3)))])
        modes = rng.choice(
            [
                (Mode.EXCLUSIVE,),
                (Mode.EXCLUSIVE,),
                (Mode.EXCLUSIVE, Mode.SHARED),
                (Mode.PERMITS,),
                tuple(Mode),
            ]
        )
        return Plan(
            ttl=rng.choice([1.0, 3.0, 10.0]) if faults else 1000.0,
            hosts=rng.randint(1, 3),
            workers=rng.randint(1, 2),
            rounds=rng.randint(1, 2),
            names=rng.choice([1, 1, 1, 2]),
            modes=modes,
            limit=rng.randint(1, 3),
            fair=rng.random() < 0.7,
            reentrant=rng.random() < 0.2,
            renew=rng.random() < 0.7,
            hold_for=rng.choice([0.0, 0.5, 2.0, 5.0]),
            timeouts=rng.choice([(-1.0,), (-1.0, 0.0), (-1.0, 0.3, 2.0), (0.0, 0.05)]),
            faults=faults,
            budget=rng.randint(1, 4) if faults else 0,
            slow=rng.choice([0.0, 0.05, 0.2]),
        )


class Watched(MemoryBackend):
    """The memory backend, noting when the store confirmed a place in line."""

    def __init__(self, store: Store, link: WorldLink, records: dict[str, Record]) -> None:
        super().__init__(store, link)
        self._records = records

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        answer = await super().attempt(claim, queue, deadline)
        record = self._records.get(claim.owner)
        if record is not None and queue and isinstance(answer, Busy):
            record.acked = min(record.acked, self._port.now())
        return answer


@dataclass(eq=False)
class Client:
    host: Host
    engine: Engine
    backend: Watched
    fibers: list[Fiber] = field(default_factory=list[Fiber])


class Errors(logging.Handler):
    """The keeper survives unexpected errors and logs them; here each one is a violation."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


class Choices(Protocol):
    """Who decides."""

    def choose(self, width: int) -> int:
        """One of `width` ways to go on."""
        ...

    def chance(self, probability: float) -> bool: ...


class Scenario:
    def __init__(self, choices: Choices, plan: Plan, trace: bool = False) -> None:
        self.plan = plan
        self.choose = choices.choose
        self.chance = choices.chance
        self.report = Report()
        self.by_owner: dict[str, Record] = {}
        self.world = World()
        self.store = Store(self.world.now, self.world.now)
        self.clients = [self.client(f"h{n}") for n in range(plan.hosts)]
        self.last_fault = self.world.time
        self.budget = plan.budget
        self.tracing = trace
        self.evicted: dict[str, float] = {}  # owners that an operator threw out, and when
        self.ancient = False  # a request arrived after the tombstone it would have met

    def client(self, name: str) -> Client:
        host = Host(self.world, name)
        backend = Watched(self.store, WorldLink(host), self.by_owner)
        client = Client(host, Engine(WorldPort(host), backend, REQUEST_TIMEOUT, {}), backend)
        for n in range(self.plan.workers):
            who = f"{name}w{n}"
            client.fibers.append(self.world.spawn(host, self.work(client, who), who))
        return client

    # -- what the clients do ----------------------------------------------------------------------

    async def work(self, client: Client, who: str) -> None:
        plan = self.plan
        for _ in range(plan.rounds):
            mode = plan.modes[self.choose(len(plan.modes))]
            timeout = plan.timeouts[self.choose(len(plan.timeouts))]
            name = f"n{self.choose(plan.names)}"
            wish = self.want(name, mode, client)
            if not await self.hold_once(client, who, wish, timeout, depth=0):
                return

    def want(self, name: str, mode: Mode, client: Client) -> Want:
        plan = self.plan
        options: LockOptions = {
            "ttl": plan.ttl,
            "renew": plan.renew,
            "fair": plan.fair,
            "reentrant": plan.reentrant and mode is not Mode.PERMITS,
        }
        return want(name, mode, options, client.backend.capabilities, limit=plan.limit)

    async def hold_once(
        self, client: Client, who: str, wish: Want, timeout: float, depth: int
    ) -> bool:
        """Acquire, hold, perhaps enter again, release: as the skins do. False: stop working."""
        world, engine = self.world, client.engine
        blocking = timeout != 0
        record = Record(
            who, wish.name, wish.mode, wish.permits, wish.limit, wish.fair, blocking, world.time
        )
        if timeout >= 0:
            record.deadline = world.time + timeout
        self.report.records.append(record)
        acquisition = Acquisition(engine, wish)
        self.by_owner[acquisition.claim.owner] = record
        try:
            hold = await acquisition.run(blocking, timeout)
            if isinstance(hold, Busy):
                record.gave_up = world.time
                return True
        except BaseException as error:
            record.gave_up = world.time
            acquisition.abandon()
            if isinstance(error, Unavailable):
                return True
            raise
        record.hold, record.acquired = hold, world.time
        record.reentry = acquisition.entered is not None
        hold.listen(acquisition, lambda _: self.lost(record), engine.port)
        try:
            await engine.port.sleep(self.plan.hold_for)
            if wish.reentrant and depth == 0:
                await self.hold_once(client, who, wish, timeout, depth=1)
        finally:
            record.released = world.time
            try:
                await engine.release(hold, acquisition)
            except BaseException:
                engine.keeper.drop(hold, acquisition)
                raise
        return not engine.closed

    def lost(self, record: Record) -> None:
        record.lost = min(record.lost, self.world.time)

    # -- what the world does ----------------------------------------------------------------------

    def run(self) -> Report:
        errors = Errors()
        logger = logging.getLogger("holdfast")
        logger.addHandler(errors)
        logger.propagate = False
        try:
            self.play()
            self.settle()
        finally:
            logger.removeHandler(errors)
            logger.propagate = True
        report = self.report
        for record in report.records:
            if record.hold is not None:
                record.evicted = self.evicted.get(record.hold.claim.owner, math.inf)
        report.violations += errors.seen
        report.violations += violations(report.records, self.plan.faultless)
        report.steps = self.world.steps
        return report

    def play(self) -> None:
        world = self.world
        while any(not f.done for c in self.clients for f in c.fibers):
            world.steps += 1
            if world.steps > MAX_STEPS:
                self.wrong("does not come to an end")
                break
            if not self.act():
                self.wrong("deadlock: " + self.stuck())
                break
        for client in self.clients:
            for fiber in client.fibers:
                if fiber.error and not isinstance(fiber.error, Cancelled | LeaseLost):
                    closed = client.engine.closed and type(fiber.error).__name__ == "Closed"
                    if not closed:
                        self.wrong(f"{fiber.name} raised {fiber.error!r}")
        # A live waiter is granted within a lease of the last fault; everybody, one after another.
        turns = self.plan.workers * self.plan.hosts * self.plan.rounds * 2
        patience = turns * (self.plan.hold_for + 2 * REQUEST_TIMEOUT + 1)
        if not self.plan.faultless:
            patience += (turns + len(self.report.faults)) * (self.plan.ttl + REQUEST_TIMEOUT) * 2
        if world.time - self.last_fault > patience:
            self.wrong(f"took {world.time - self.last_fault:.1f} s, {patience:.1f} s were allowed")

    def act(self) -> bool:
        """One step of the world; False when nothing can ever happen again."""
        world, plan = self.world, self.plan
        if self.budget and self.chance(1 / 12) and self.fault():
            return True
        fibers = world.runnable()
        choices = len(fibers) + len(world.mail)
        if not choices or (plan.slow and self.chance(plan.slow)):
            return self.pass_time(bool(choices))
        index = self.choose(choices)
        if index < len(fibers):
            self.note(f"run {fibers[index].name}")
            fibers[index].step()
        else:
            message = world.mail[index - len(fibers)]
            self.note(f"deliver {'request' if message.request else 'answer'} {message.host.name}")
            self.deliver(message)
        return True

    def deliver(self, message: Message) -> None:
        if message.request is not None and self.world.time >= message.sent + self.plan.ttl:
            self.ancient = True
        self.world.deliver(message)

    def pass_time(self, busy: bool) -> bool:
        world = self.world
        moment = world.next_moment()
        if busy:
            moment = min(moment, world.time + (0.01, 0.1, 1.0)[self.choose(3)])
        if math.isinf(moment):
            return False
        self.note(f"time +{moment - world.time:.3f}")
        world.time = moment
        return True

    def fault(self) -> bool:
        world = self.world
        kind = self.plan.faults[self.choose(len(self.plan.faults))]
        if kind in ("lose_request", "lose_reply"):
            wanted = kind == "lose_request"
            mail = [m for m in world.mail if (m.request is not None) is wanted]
            if not mail:
                return False
            world.lose(mail[self.choose(len(mail))])
        elif kind == "evict":
            line = self.store._lines.get("n0")
            if line is None or not line.holders:
                return False
            self.evicted.update(dict.fromkeys(line.holders, world.time))
            self.store.evict("n0")
        else:
            client = self.clients[self.choose(len(self.clients))]
            if client.host.crashed or not self.strike(kind, client):
                return False
        self.budget -= 1
        self.last_fault = world.time
        self.report.faults.append(kind)
        self.note(f"FAULT {kind}")
        return True

    def strike(self, kind: str, client: Client) -> bool:
        world = self.world
        if kind == "crash":
            for record in self.report.records:
                if record.who.startswith(client.host.name):
                    record.crashed = min(record.crashed, world.time)
                    record.gave_up = min(record.gave_up, world.time)
            world.crash(client.host)
        elif kind == "pause":
            client.host.paused_until = world.time + self.plan.ttl * (0.3, 0.9, 2.5)[self.choose(3)]
        elif kind == "hang":  # nothing gets through for a while, and then late
            for message in list(world.mail):
                if message.host is client.host:
                    world.lose(message)
        elif kind == "break":  # at once, on the client's side; what was sent arrives later
            mail = [m for m in world.mail if m.host is client.host]
            if not mail:
                return False
            for message in mail:
                message.broken = True
        elif kind == "cancel":
            alive = [f for f in client.fibers if not f.done and f.park is not None]
            if not alive:
                return False
            alive[self.choose(len(alive))].step(throw=Cancelled())
        elif kind == "close":
            if client.engine.closed:
                return False
            world.spawn(client.host, client.engine.close(5.0), f"{client.host.name}-close")
        else:
            keepers = [
                f
                for f in world.fibers
                if f.host is client.host and "keeper" in f.name and not f.done and f.park
            ]
            if not keepers:
                return False
            keepers[0].step(throw=SystemExit())
        return True

    # -- afterwards -------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults: what is owed is paid, and then nothing is left anywhere."""
        world = self.world
        alive = [c for c in self.clients if not c.host.crashed]
        for client in alive:
            client.engine.keeper.rouse()  # as the next use of a client whose keeper died does
        for _ in range(MAX_STEPS):
            closing = any(f.name.endswith("close") for f in world.fibers if not f.done)
            # A closed client pays for a bounded time only; what it then still owes, expires.
            paid = all(c.engine.keeper.idle or c.engine.closed for c in alive)
            if not world.mail and not closing and paid:
                break
            fibers = world.runnable()
            if fibers or world.mail:
                for fiber in fibers:
                    fiber.step()
                for message in list(world.mail):
                    if message in world.mail:
                        self.deliver(message)
            elif not self.pass_time(busy=False):
                self.wrong("deadlock while settling: " + self.stuck())
                return
        else:
            self.wrong("does not settle")
        crashed = len(alive) < len(self.clients)
        # A request that was under way for longer than a ttl may take the lock for nobody, for one
        # ttl (law 3's tombstones last that long): then only the second look must find nothing.
        if not crashed and not self.ancient and all(c.engine.keeper.idle for c in alive):
            self.nothing_left("while all clients live", tombstones=True)
        world.time += self.plan.ttl + 0.001
        self.nothing_left("after a lease", tombstones=False)
        if crashed:  # whoever was granted by the expiry of a dead one may be dead as well
            world.time += self.plan.ttl * len(self.clients) * self.plan.workers
        for client in alive:
            keeper = client.engine.keeper
            tickets = client.backend._tickets and not self.ancient
            if tickets or (keeper._claims and not len(keeper._owed)):
                self.wrong(f"{client.host.name} remembers claims that are over")

    def nothing_left(self, when: str, *, tombstones: bool) -> None:
        left = self.store.leftovers()
        if tombstones:
            left = [line for line in left if not line.startswith("tombstone")]
        if left:
            self.wrong(f"left {when}: {left}")

    def stuck(self) -> str:
        return ", ".join(f.name for f in self.world.fibers if not f.done)

    def wrong(self, what: str) -> None:
        self.report.violations.append(what)

    def note(self, what: str) -> None:
        if self.tracing:
            self.report.trace.append(f"{self.world.time:9.3f}  {what}")


def run(choices: Choices, plan: Plan, trace: bool = False) -> Report:
    scenario = Scenario(choices, plan, trace)
    try:
        return scenario.run()
    finally:
        for client in scenario.clients:
            scenario.world.crash(client.host)  # a violated schedule leaves fibers standing
