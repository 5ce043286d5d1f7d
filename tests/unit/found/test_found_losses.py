"""What was wrong with being told of a loss stays found: one test each.

What each was and how it showed is in docs/concepts/found-bugs.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any, cast

import pytest
from tests.unit.found.memory import url
from tests.waiting import PATIENCE, until

import holdfast
from holdfast import LeaseLost, Unavailable, aio
from holdfast.core.backend import Backend
from holdfast.core.hold import Hold
from holdfast.core.keeper import TICK, Keeper
from holdfast.ports.clock import now
from holdfast.testing.world import Host, World, WorldPort
from holdfast.types import Claim, Grant, Unknown


@pytest.mark.req("law 5", "thousands of renewals due at once")
def test_a_loss_is_told_although_many_renewals_are_stuck(locks: holdfast.Locks) -> None:
    backend: Any = locks._current.backend
    port = locks._current.port

    async def silent(grants: Any, deadline: float) -> Any:
        await port.sleep(max(0.0, min(0.2, deadline - port.now())))
        return [Unknown("silence")] * len(grants)

    many = [locks.lock(f"n{n}", ttl=60, renew=0.3).acquire() for n in range(8000)]
    backend.renew = silent
    told = threading.Event()
    lease = locks.lock("x", ttl=1.5, renew=False, on_lost=lambda loss: told.set()).acquire()
    assert lease
    assert told.wait(PATIENCE)  # a round of renewals takes 8 batches of 0.2 s and never ends
    assert all(many)


@pytest.mark.req("B2", "asyncio cancellation at any await")
def test_an_outside_cancel_wins_over_a_loss() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks:

            async def body() -> None:
                async with locks.lock("x", ttl=0.3, renew=False, on_lost=outside):
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(10)

            def outside(loss: LeaseLost) -> None:
                task.cancel()

            task = asyncio.create_task(body())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    asyncio.run(main())


@pytest.mark.req("B2")
def test_a_coroutine_function_that_is_told_of_a_loss_is_awaited() -> None:
    class Watcher:
        async def __call__(self, loss: LeaseLost) -> None:
            await self.method(loss)

        async def method(self, loss: LeaseLost) -> None:
            await asyncio.sleep(0)
            told.put_nowait(loss.name)

    async def main() -> None:
        async with aio.connect(url()) as locks:
            lease = await locks.lock("x", on_lost=Watcher()).acquire()
            assert lease
            lease.on_lost(Watcher().method)
            await locks.evict("x")
            with pytest.raises(LeaseLost):
                await lease.renew()
            names = [await asyncio.wait_for(told.get(), PATIENCE) for _ in range(2)]
            assert names == ["x", "x"]

    told: asyncio.Queue[str] = asyncio.Queue()
    asyncio.run(main())


@pytest.mark.req("B2")
def test_a_loss_the_body_did_not_notice_cancels_nothing_later() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks:
            with pytest.raises(LeaseLost):
                async with locks.lock("x", ttl=0.2, renew=False) as lease:
                    with contextlib.suppress(asyncio.CancelledError):
                        await lease.lost.wait()
                        await asyncio.sleep(1)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0.01)  # nothing is pending

    asyncio.run(main())


@pytest.mark.req("B2", "R5")
def test_reentry_does_not_pile_up_callbacks(locks: holdfast.Locks) -> None:
    calls: list[LeaseLost] = []
    lock = locks.lock("x", ttl=30, renew=0.1, reentrant=True, on_lost=calls.append)
    with pytest.raises(LeaseLost), lock as lease:
        for _ in range(5):
            with lock:
                pass
        assert lease._hold.callbacks is not None
        assert len(lease._hold.callbacks) == 1
        locks.evict("x")
        assert lease.lost.wait(10)
    until(lambda: calls)
    assert len(calls) == 1


@pytest.mark.req("B2", "R5")
def test_waiting_for_the_loss_of_an_inner_lease_ends_with_it(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=1000, reentrant=True)
    with lock as outer:
        inner = lock.acquire()
        assert inner
        answer: list[bool] = []
        thread = threading.Thread(target=lambda: answer.append(inner.lost.wait(20)))
        thread.start()
        inner.release()
        thread.join(10)
        assert answer == [False]
        assert outer.held


@pytest.mark.req("B2")
def test_lost_wait_and_is_set_agree(locks: holdfast.Locks) -> None:
    lease = locks.lock("x", ttl=0.05, renew=False).acquire()
    assert lease
    until(lambda: not lease.held)
    assert lease.lost.wait(0) is True
    assert lease.lost.is_set()


@pytest.mark.req("B2")
def test_callbacks_that_exit_or_block_do_not_stop_the_others(locks: holdfast.Locks) -> None:
    called: list[int] = []
    gate = threading.Event()

    def callback(number: int) -> Any:
        def run(loss: LeaseLost) -> None:
            called.append(number)
            if number == 0:
                gate.wait(10)
            raise SystemExit

        return run

    leases = [
        locks.lock(f"n{n}", ttl=0.05, renew=False, on_lost=callback(n)).acquire() for n in range(20)
    ]
    until(lambda: len(called) == 20)
    gate.set()
    assert all(leases)


@pytest.mark.req("R21", "B2")
@pytest.mark.parametrize("news", ["lost", "uncertain"])
def test_what_is_said_of_a_grant_on_its_way_is_heard(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    """A session that ends between the grant and the keeper: nobody holds yet who could be told."""
    backend, keeper = locks._current.backend, locks._current.keeper
    attempt = backend.attempt

    async def granted(claim: Claim, queue: bool, deadline: float) -> Any:
        answer = await attempt(claim, queue, deadline)
        if news == "lost":
            keeper.lost(claim.owner, "the session ended")
        keeper.certain_until(claim.owner, 0.0)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(backend, "attempt", granted)
        lease = locks.lock("x").acquire()
    assert lease
    assert not lease.held
    assert lease.lost.is_set() is (news == "lost")
    assert lease.uncertain is (news == "uncertain")
    assert lease.release() is (news != "lost")
    assert not keeper._early


@pytest.mark.req("R21", "B2")
def test_a_renewal_that_cannot_be_asked_for_in_time_says_that_the_lease_is_lost(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away until the lease is over: that is a loss."""
    lease = locks.lock("x", ttl=0.2, renew=False).acquire()
    assert lease

    async def away(grants: object, deadline: float) -> Any:
        time.sleep(max(0.0, deadline - now()) + 0.01)
        raise Unavailable("could not be reached")

    monkeypatch.setattr(locks._current.backend, "renew", away)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert not lease.held


@pytest.mark.req("R20", "R21")
def test_a_renewal_without_an_answer_is_none_the_less_one_if_the_keeper_has_made_it(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection was quicker: what was asked for has happened."""
    lease = locks.lock("x", ttl=5, renew=False).acquire()
    assert lease
    (hold,) = locks._current.keeper._holds.values()

    async def lost(grants: object, deadline: float) -> Any:
        hold.renewed(now(), now() + 5, 0.0)
        return [Unknown("no answer")]

    monkeypatch.setattr(locks._current.backend, "renew", lost)
    lease.renew()
    assert lease.held


@pytest.mark.req("R9", "B3")
def test_a_loop_that_runs_in_another_thread_by_now_is_woken() -> None:
    """Where the loop had run first was taken for its inside: it heard of a hand-over from there
    when its own timer came."""
    loop = asyncio.new_event_loop()

    async def begin() -> aio.Locks:
        client = aio.connect("memory://moved")
        async with client.lock("first"):
            return client

    async def wait(client: aio.Locks) -> None:
        async with client.lock("x", ttl=600):
            pass
        await client.close()

    client = loop.run_until_complete(begin())
    with holdfast.connect("memory://moved") as locks:
        lease = locks.lock("x", ttl=600).acquire()
        assert lease
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        waiting = asyncio.run_coroutine_threadsafe(wait(client), loop)
        until(lambda: locks.inspect("x")[0].waiters, "in line")
        assert lease.release()
        waiting.result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
    loop.close()


@pytest.mark.req("R4", "R12")
def test_a_lost_lease_does_not_have_the_next_one_forgotten(locks: holdfast.Locks) -> None:
    """While the keeper forgot a lost hold, its thread took the lock anew; the keeper then forgot
    that one, and the thread, entering again, waited for itself."""
    lock = locks.lock("x", ttl=60, reentrant=True)
    old = lock.acquire()
    assert old is not None
    engine = locks._current
    looked, go = threading.Event(), threading.Event()

    class Slow(dict[Any, Any]):
        def get(self, *arguments: Any) -> Any:
            found = super().get(*arguments)
            if threading.current_thread() is loser:
                looked.set()
                go.wait(0.5)  # who takes it anew must not be kept waiting for long
            return found

    assert old._hold.entry is not None
    until(lambda: not engine.keeper._fresh, "the keeper has looked")  # it loses nothing by itself
    entry = Slow(old._hold.entry)
    old._hold.entry = engine.reentry._by_context[engine.port.context()] = entry
    old._hold.until = now()  # it ran out, here and in the store
    locks.evict("x")
    loser = threading.Thread(target=engine.check_deadline, args=(old._hold,))
    loser.start()
    assert looked.wait(10)
    new = lock.acquire(timeout=10)
    go.set()
    loser.join(10)
    assert new is not None
    assert new.held
    assert lock.acquire(timeout=0) is not None


@pytest.mark.req("R20", "law 5")
def test_a_short_lease_leaves_the_long_ones_time_to_be_renewed() -> None:
    """They were renewed in one batch, and what was left of the shortest was its time limit."""
    world = World()
    port = WorldPort(Host(world, "here"))
    asked: dict[str, float] = {}

    class Slow:
        async def renew(self, grants: Any, deadline: float) -> Any:
            asked.update((grant.claim.name, deadline - world.time) for grant in grants)
            return [Unknown("it answers after half a second")] * len(grants)

    keeper = Keeper(port, cast("Backend", Slow()))
    for name, ttl in (("short", 1.0), ("long", 60.0), ("as long", 60.0)):
        grant = Grant(Claim(name, name, ttl=ttl), world.time + ttl, 1)
        keeper.begin(grant.claim)
        keeper.add(Hold(grant, world.time, 0.9, 0.0, 0), world.time)
    world.time += 0.9
    for _ in range(2):  # the keeper's first round and its second
        for fiber in world.runnable():
            fiber.step()
    assert asked["short"] < 0.2 < TICK
    assert asked["long"] == asked["as long"] == pytest.approx(TICK)
