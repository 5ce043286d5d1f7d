"""The laws of docs/concepts/design.md, one by one, where a look at a few lines decides.

Most run the core in a world with a fake clock (`holdfast.testing.world`), in which nothing happens
by itself: so the moment between a deadline and whoever notices it can be looked at. What the
explorer and the conformance suite cannot see, or see only after a long wait, is here; the seeded
bugs in `tests/mutants` show which.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

import holdfast.aio
from holdfast.backends.memory import MemoryBackend, Store
from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.hold import Hold
from holdfast.core.lease import LeaseState
from holdfast.core.options import LockOptions, want
from holdfast.errors import Closed, HoldfastError, LeaseLost
from holdfast.ports import clock
from holdfast.ports.asyncio import AsyncioPort
from holdfast.ports.bare import ThreadEvent
from holdfast.testing.world import Fiber, Host, Message, World, WorldLink, WorldPort
from holdfast.types import Mode, Unknown

T = TypeVar("T")
TTL = 9.0


class Breaking(WorldLink):
    """Its next connections break as soon as the request is sent, which arrives all the same, when
    the test delivers it: no answer is known at once, and not only when patience ends."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.breaks = 0
        self.under_way: list[Message] = []

    async def ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        if self.breaks:
            self.breaks -= 1
            self.under_way.append(Message(self._host, request, lambda _: None))
            return Unknown("the connection broke")
        return await super().ask(deadline, request)

    def arrive(self) -> None:
        """What was under way when the connections broke reaches the store."""
        for message in self.under_way:
            assert message.request
            message.request()
        self.under_way.clear()


class Lab:
    """One store, and clients of it, in a world of their own. With `linked` requests take time."""

    def __init__(self) -> None:
        self.world = World()
        self.store = Store(self.world.now, self.world.now)
        self.losses: list[LeaseLost] = []

    def client(self, *, linked: bool = False) -> Engine:
        host = Host(self.world, f"h{len(self.world.fibers)}")
        backend = MemoryBackend(self.store, Breaking(host) if linked else None)
        return Engine(WorldPort(host), backend, 2.0, {})

    def unanswered(self, engine: Engine) -> tuple[Acquisition, Hold, Breaking]:
        """Held by a second attempt, while the first is still on its way to the store."""
        assert isinstance(engine.backend, MemoryBackend)
        link = engine.backend._link
        assert isinstance(link, Breaking)
        link.breaks = 1
        acquisition = self.acquisition(engine)
        holds: list[Hold] = []

        async def main() -> None:
            hold = await acquisition.run(blocking=True, timeout=-1)
            assert isinstance(hold, Hold)
            holds.append(hold)

        self.fiber(engine, main())
        self.pass_time(0.5)
        assert len(link.under_way) == 1
        return acquisition, holds[0], link

    def acquisition(self, engine: Engine, **options: Any) -> Acquisition:
        chosen: LockOptions = {"ttl": TTL, "on_lost": self.losses.append, **options}  # type: ignore[typeddict-item]
        return Acquisition(engine, want("x", Mode.EXCLUSIVE, chosen, engine.backend.capabilities))

    def acquire(self, engine: Engine, **options: Any) -> Hold:
        """What must be had at once."""
        acquisition = self.acquisition(engine, **options)
        hold = self.result(engine, acquisition.run(blocking=False, timeout=0))
        assert isinstance(hold, Hold)
        return hold

    def fiber(self, engine: Engine, coroutine: Coroutine[Any, Any, T]) -> Fiber:
        assert isinstance(engine.port, WorldPort)
        return self.world.spawn(engine.port._host, coroutine, "test")

    def result(self, engine: Engine, coroutine: Coroutine[Any, Any, T]) -> T:
        """The world goes on, without time passing, until this has its result."""
        results: list[T] = []

        async def main() -> None:
            results.append(await coroutine)

        fiber = self.fiber(engine, main())
        self.run(until=lambda: fiber.done, keepers=False)
        if fiber.error:
            raise fiber.error
        return results[0]

    def run(self, until: Callable[[], bool], *, keepers: bool = True) -> None:
        """Everything that can happen now happens, until `until`."""
        for _ in range(1000):
            fibers = [f for f in self.world.runnable() if keepers or "keeper" not in f.name]
            if until() or not (fibers or self.world.mail):
                break
            for fiber in fibers:
                fiber.step()
            for message in list(self.world.mail):
                self.world.deliver(message)
        assert until()

    def answered_after(self, moment: float) -> None:
        """Somebody sends a request; the store serves it now, and its answer arrives then."""
        while not self.world.mail:
            for fiber in self.world.runnable():
                fiber.step()
        (message,) = self.world.mail
        self.world.deliver(message)
        self.world.time = moment
        self.world.deliver(message)

    def calm(self) -> None:
        """Everything that can happen now happens."""
        self.run(until=lambda: not self.world.runnable() and not self.world.mail)

    def pass_time(self, seconds: float) -> None:
        """Time passes, and everybody does meanwhile what is to be done."""
        end = self.world.time + seconds
        self.calm()
        while (moment := self.world.next_moment()) <= end:
            self.world.time = moment
            self.calm()
        self.world.time = end
        self.calm()


@pytest.fixture
def lab() -> Lab:
    return Lab()


# -- law 1 and 5: deadlines -----------------------------------------------------------------------


@pytest.mark.req("R5", "R1", "law 5")
@pytest.mark.parametrize("renew", [True, False])
def test_a_lease_that_ran_out_is_not_entered_again(lab: Lab, renew: bool) -> None:
    """Nobody has noticed yet that it ran out, and another may have the lock by now."""
    engine, other = lab.client(), lab.client()

    async def scenario() -> None:
        acquisition = lab.acquisition(engine, reentrant=True, renew=renew)
        first = await acquisition.run(blocking=False, timeout=0)
        assert isinstance(first, Hold)
        lab.world.time += TTL + 1  # a pause: no keeper looked
        assert not first.end
        assert isinstance(await lab.acquisition(other).run(blocking=False, timeout=0), Hold)
        acquisition = lab.acquisition(engine, reentrant=True, renew=renew)
        assert not isinstance(await acquisition.run(blocking=False, timeout=0), Hold)

    lab.result(engine, scenario())


@pytest.mark.req("R21", "B2", "law 5")
def test_a_loss_is_seen_without_a_keeper(lab: Lab) -> None:
    """`lease.lost.wait()` ends at the deadline though the keeper, who would tell, is dead."""
    engine = lab.client()
    hold = lab.acquire(engine)
    lab.calm()
    (keeper,) = [fiber for fiber in lab.world.fibers if "keeper" in fiber.name]
    keeper.kill()
    ended = lab.fiber(engine, engine.until_ended(hold, lambda: False, math.inf))
    lab.pass_time(TTL - 1)
    early = ended.done
    lab.pass_time(2)
    assert (early, ended.done) == (False, True)
    assert hold.end == "its time ran out without a renewal"  # as the keeper would have said it
    assert len(lab.losses) == 1


@pytest.mark.req("R21", "B2", "law 5")
def test_a_loss_is_announced_once(lab: Lab) -> None:
    engine = lab.client()
    hold = lab.acquire(engine, renew=False)
    waiting = lab.fiber(engine, engine.until_ended(hold, lambda: False, math.inf))
    lab.pass_time(TTL - 0.1)
    assert not lab.losses
    assert engine.trusted(hold)
    lab.pass_time(0.1)
    assert [loss.name for loss in lab.losses] == ["x"]
    assert waiting.done
    lab.pass_time(2 * TTL)
    assert len(lab.losses) == 1


@pytest.mark.req("R21", "law 5")
def test_what_is_over_stays_over(lab: Lab) -> None:
    """The keeper's renewal is answered after the local deadline, because the host was paused: a
    lease that has said that it is not held does not say later that it is."""
    engine = lab.client(linked=True)
    hold = lab.acquire(engine)
    lab.pass_time(hold.renew_at - lab.world.time - 0.01)
    lab.world.time += 0.01
    lab.answered_after(hold.until + 0.5)
    assert not engine.trusted(hold)
    lab.calm()
    assert not engine.trusted(hold)
    assert hold.lost
    assert len(lab.losses) == 1


@pytest.mark.req("R21", "law 5")
def test_what_is_over_stays_over_when_the_holder_itself_renews(lab: Lab) -> None:
    """The same with `lease.renew()`: it raises, and the lease is lost."""
    engine = lab.client(linked=True)
    hold = lab.acquire(engine, renew=False)
    lab.world.time += TTL - 1
    renewal = lab.fiber(engine, engine.renew(hold))
    renewal.step()
    lab.answered_after(hold.until + 0.5)
    assert not engine.trusted(hold)
    renewal.step()  # before the keeper has noticed
    assert not engine.trusted(hold)
    assert isinstance(renewal.error, LeaseLost)


@pytest.mark.req("R21", "law 3")
def test_a_renewal_that_a_release_overtook_is_an_error(lab: Lab) -> None:
    """The store agreed before the release arrived: there is nothing left to be glad about."""
    engine = lab.client(linked=True)
    acquisition = lab.acquisition(engine, renew=False)
    hold = lab.result(engine, acquisition.run(blocking=False, timeout=0))
    assert isinstance(hold, Hold)
    renewal = lab.fiber(engine, engine.renew(hold))
    renewal.step()
    assert lab.result(engine, engine.release(hold, acquisition)) is True
    lab.calm()
    assert isinstance(renewal.error, HoldfastError)


# -- law 6: renewals ------------------------------------------------------------------------------


@pytest.mark.req("R20", "law 6")
def test_a_renewal_never_shortens_what_the_holder_believes() -> None:
    """Two renewals, the keeper's and the holder's own, are answered in the other order."""
    lease = LeaseState(0.0, 10.0, 3.0, 0.5)
    lease.renewed(4.0, 14.0, 0.5)
    lease.renewed(3.0, 13.0, 0.5)
    assert lease.until == 14.0
    assert lease.trusted(13.5)


# -- law 3: no ghosts -----------------------------------------------------------------------------


@pytest.mark.req("law 3", "attempt in flight while its claim is released")
def test_an_attempt_that_arrives_after_the_release_takes_nothing(lab: Lab) -> None:
    """Its connection broke, so it was made again; the first one arrives when all is over."""
    engine = lab.client(linked=True)
    acquisition, hold, link = lab.unanswered(engine)
    assert lab.result(engine, engine.release(hold, acquisition)) is True
    assert lab.store.inspect("", exact=False) == []
    link.arrive()
    assert lab.store.inspect("", exact=False) == []


@pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn", "eviction")
def test_an_attempt_that_arrives_after_the_loss_takes_nothing(lab: Lab) -> None:
    """The store says that the lease is gone, and has not yet seen all requests of its claim."""
    engine = lab.client(linked=True)
    _, hold, link = lab.unanswered(engine)
    assert lab.store.evict("x") == 1
    lab.pass_time(TTL / 2)
    assert hold.lost
    link.arrive()
    assert lab.store.inspect("", exact=False) == []


# -- law 4: nothing is left behind ----------------------------------------------------------------


@pytest.mark.req("R2", "law 4", "waiter withdrawn")
def test_close_leaves_nothing_in_line(lab: Lab) -> None:
    engine, other = lab.client(), lab.client()
    lab.acquire(other, renew=False)
    acquisition = lab.acquisition(engine)
    waiter = lab.fiber(engine, acquisition.run(blocking=True, timeout=-1))
    lab.calm()
    assert len(lab.store.inspect("x", exact=True)[0].waiters) == 1
    closing = lab.fiber(engine, engine.close(1.0))
    lab.calm()
    assert closing.done
    assert closing.error is None
    assert isinstance(waiter.error, Closed)
    assert not lab.store.inspect("x", exact=True)[0].waiters
    assert not engine.keeper._claims


@pytest.mark.req("B3", "law 4", "waiter withdrawn")
def test_a_cancelled_waiter_leaves_the_line_soon() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://laws") as locks, locks.lock("x"):
            waiter = asyncio.create_task(locks.lock("x").acquire())
            while not (await locks.inspect("x"))[0].waiters:
                await asyncio.sleep(0.005)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            deadline = clock.now() + 20  # less than its lease would last
            while (await locks.inspect("x"))[0].waiters:
                assert clock.now() < deadline, "it is still in line"
                await asyncio.sleep(0.005)

    asyncio.run(main())


# -- ports: a wake-up is never lost ---------------------------------------------------------------


@pytest.mark.req("B3", "R9")
def test_clearing_an_event_swallows_no_set() -> None:
    """`set` comes from a finaliser or another thread in the middle of `clear`."""
    event = ThreadEvent()
    gate = event._gate

    class Gate:
        """Lets `set` in between the two steps of `clear`."""

        release = gate.release

        def acquire(self, *args: Any, **kwargs: Any) -> bool:
            event._gate = gate
            event.set()
            return gate.acquire(*args, **kwargs)

    event._gate = Gate()  # type: ignore[assignment]
    event.clear()
    assert event.is_set()
    assert not gate.locked(), "who waits at the gate already is not let through"
    assert event.block(clock.now() + 1)


@pytest.mark.req("B3", "R9")
def test_an_event_set_by_a_thread_wakes_the_loop() -> None:
    """A client with threads hands a lock to a task: nothing else wakes that task's loop."""

    async def main() -> float:
        port = AsyncioPort()
        event = port.event()
        port.loop()
        threading.Timer(0.02, event.set).start()
        begun = clock.now()
        assert await event.wait(begun + 60)
        return clock.now() - begun

    assert asyncio.run(main()) < 30


@pytest.mark.req("B2")
def test_the_body_is_cancelled_soon() -> None:
    """Within a tick of the loss, though the body does nothing but sleep."""

    async def main() -> None:
        async with holdfast.aio.connect("memory://laws") as locks:
            begun = clock.now()
            with pytest.raises(LeaseLost):
                async with locks.lock("x", ttl=0.1, renew=False):
                    await asyncio.sleep(30)
            assert clock.now() - begun < 20

    asyncio.run(main())
