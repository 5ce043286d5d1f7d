"""Every bug that was found once, by review or by search, stays found: one test each.

What each was and how it showed is in docs/concepts/found-bugs.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.waiting import PATIENCE, until

import holdfast
from holdfast import LeaseLost, NotHeld, Unavailable, aio
from holdfast.backends.memory import MemoryBackend, Store
from holdfast.core.acquire import Acquisition
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.types import Claim, Released, Unknown

numbers = itertools.count()


def url() -> str:
    return f"memory://found{next(numbers)}"


@pytest.fixture
def locks() -> Iterator[holdfast.Locks]:
    with holdfast.connect(url()) as client:
        yield client


def store_of(client: Any) -> Store:
    backend = client._current.backend
    assert isinstance(backend, MemoryBackend)
    return backend.store


async def renewed(lease: aio.Lease) -> None:
    """Until the keeper has extended it. (It would last for long: a machine that stands still for a
    second loses nothing by that.)"""
    end, before = now() + PATIENCE, lease.remaining()
    while lease.remaining() <= before:
        assert now() < end, "nobody renews it"
        before = lease.remaining()
        await asyncio.sleep(0.005)


@pytest.mark.req("R1")
def test_two_clients_made_at_once_share_one_store() -> None:
    for _ in range(200):
        name = url()
        stores: list[Any] = []
        barrier = threading.Barrier(2)

        def connect(name: str = name, stores: list[Any] = stores, b: Any = barrier) -> None:
            b.wait()
            stores.append(store_of(holdfast.connect(name)))

        threads = [threading.Thread(target=connect) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stores[0] is stores[1]


@pytest.mark.req("R2", "key expires while waiters queue")
def test_the_next_in_line_knows_of_a_shorter_lease_before_it(locks: holdfast.Locks) -> None:
    """A dead holder with a short ttl, behind a line that was told of a long one."""
    store = store_of(locks)
    first = locks.lock("x", ttl=1000).acquire()
    assert first
    dead = Claim("x", "dead", ttl=0.2)
    store.attempt(dead, lambda claim: lambda held: None)  # nobody will ever look for it
    got = threading.Event()

    def wait() -> None:
        with locks.lock("x", ttl=1000):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(locks.inspect("x")[0].waiters) == 2)
    first.release()
    assert got.wait(10)  # not a third of 1000 seconds
    thread.join()


@pytest.mark.req("R10", "B1")
def test_a_reader_knows_the_last_writer_also_of_a_forgotten_line(locks: holdfast.Locks) -> None:
    rw = locks.rwlock("x")
    with rw.write() as writer:
        pass
    with rw.read() as reader:
        assert reader.fence >= writer.fence
    with rw.write() as next_writer:
        assert next_writer.fence > reader.fence


@pytest.mark.req("R12")
def test_each_with_leaves_its_own_lease(locks: holdfast.Locks) -> None:
    """Two generators in one thread, left in the order they began."""
    semaphore = locks.semaphore("x", 2)

    def body() -> Iterator[holdfast.Permit]:
        with semaphore as permit:
            yield permit

    one, other = body(), body()
    first, second = next(one), next(other)
    one.close()  # type: ignore[attr-defined]
    assert not first.held
    assert second.held
    other.close()  # type: ignore[attr-defined]
    assert not second.held


@pytest.mark.req("R12")
def test_an_async_generator_ended_elsewhere_leaves_its_own_lease() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks:
            semaphore = locks.semaphore("x", 2)

            async def body() -> AsyncIterator[aio.Permit]:
                async with semaphore as permit:
                    yield permit

            generator = body()
            first = await anext(generator)
            async with semaphore as second:
                await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
                assert not first.held
                assert second.held

    asyncio.run(main())


@pytest.mark.req("R12")
def test_exit_stack_and_calls_by_hand(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", reentrant=True)
    with contextlib.ExitStack() as stack:
        outer = stack.enter_context(lock)
        inner = stack.enter_context(lock)
        assert [outer.held, inner.held] == [True, True]
    assert [outer.held, inner.held] == [False, False]
    assert hasattr(lock, "__exit__")  # looking is not entering
    lease = lock.__enter__()
    gc.collect()
    assert [lease.held] == [True]
    lock.__exit__(None, None, None)
    assert [lease.held] == [False]
    with pytest.raises(NotHeld):
        lock.__exit__(None, None, None)


@pytest.mark.req("R12")
def test_release_means_the_newest_however_it_was_taken(locks: holdfast.Locks) -> None:
    semaphore = locks.semaphore("x", 2)
    older = semaphore.acquire()
    assert older
    with semaphore as newer:
        semaphore.release()
        assert older.held
        assert not newer.held
    assert semaphore.release()
    assert not older.held


@pytest.mark.req("R12")
def test_releasing_inside_the_body_is_fine(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", reentrant=True)
    with lock as outer:
        with lock as inner:
            inner.release()
        assert outer.held


@pytest.mark.req("B3", "law 5")
def test_a_cancelled_keeper_comes_back() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks:
            async with locks.lock("x", ttl=1.0):
                pass
            keepers = [t for t in asyncio.all_tasks() if t.get_name() == "holdfast-keeper"]
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)
            async with locks.lock("x", ttl=60, renew=0.1) as lease:
                await renewed(lease)

    asyncio.run(main())


@pytest.mark.req("waiter paused, then granted")
def test_a_grant_that_waited_is_renewed_in_time() -> None:
    """The grant came long before the waiter saw it: its renewal is due soon, not in ttl/3."""
    from holdfast.core.hold import Hold
    from holdfast.types import Grant

    now = 100.0
    grant = Grant(Claim("x", "o", ttl=3.0), until=now + 0.9)  # granted 2.1 s ago
    hold = Hold(grant, now, renew_every=1.0, random=0.0, incarnation=0)
    assert hold.renew_at <= now


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


@pytest.mark.req("law 4")
def test_close_can_be_interrupted_and_called_again() -> None:
    async def main() -> None:
        locks = aio.connect(url())
        leases = [await locks.lock(f"n{n}", ttl=1000).acquire() for n in range(3)]
        backend: Any = locks._current.backend
        withdraw, hang = backend.withdraw, True

        async def slow(*arguments: Any) -> Released | Unknown:
            if hang:
                await asyncio.sleep(0.2)
                return Unknown("slow")
            answer: Released = await withdraw(*arguments)
            return answer

        backend.withdraw = slow
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await locks.close()
        hang = False
        await locks.close()
        assert store_of(locks).inspect("", False) == []
        assert not any(lease.held for lease in leases if lease)

    asyncio.run(main())


@pytest.mark.req("law 4", "server hangs")
def test_close_with_a_silent_store_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sync.PATIENCE", 0.3)
    locks = holdfast.connect(url())
    lease = locks.lock("x").acquire()
    backend: Any = locks._current.backend

    async def silent(claim: Claim, tombstone: bool, deadline: float) -> Unknown:
        return Unknown("silence")

    backend.withdraw = silent
    locks.close()
    assert lease
    assert not lease.held


@pytest.mark.req("law 4")
def test_a_waiter_hears_of_close_at_once() -> None:
    locks, other = holdfast.connect(name := url()), holdfast.connect(name)
    with other.lock("x", ttl=1000):
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                locks.lock("x", ttl=1000).acquire()
            except holdfast.HoldfastError as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: other.inspect("x")[0].waiters)
        locks.close()
        thread.join(10)
        assert not thread.is_alive()
        assert isinstance(caught[0], holdfast.Closed)
        assert not other.inspect("x")[0].waiters
    other.close()


@pytest.mark.req("R1")
def test_a_finaliser_inside_the_store_does_not_deadlock(locks: holdfast.Locks) -> None:
    store = store_of(locks)
    lease = locks.lock("x").acquire()
    assert lease
    with store.mutex:  # where the garbage collector may run anybody's finaliser
        assert lease.release()
    with locks.lock("x", timeout=10):
        pass


@pytest.mark.req("R7")
def test_timeout_zero_is_a_try_and_not_an_impatient_wait(locks: holdfast.Locks) -> None:
    seen: list[float] = []
    backend: Any = locks._current.backend
    attempt = backend.attempt

    async def watched(claim: Claim, queue: bool, deadline: float) -> Any:
        seen.append(deadline - locks._current.port.now())
        assert not queue
        return await attempt(claim, queue, deadline)

    backend.attempt = watched
    assert locks.lock("x").acquire(timeout=0)
    with locks.lock("y", timeout=0):
        pass
    assert min(seen) > 1


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


@pytest.mark.req("R21")
def test_a_poisoned_clean_up_does_not_block_the_others(locks: holdfast.Locks) -> None:
    backend: Any = locks._current.backend
    withdraw = backend.withdraw

    async def poisoned(claim: Claim, tombstone: bool, deadline: float) -> Any:
        if claim.name == "bad":
            return Unknown("never")
        return await withdraw(claim, tombstone, deadline)

    backend.withdraw = poisoned
    keeper = locks._current.keeper
    for name in ("bad", "good1", "good2"):
        acquisition = Acquisition(locks._current, locks.lock(name, ttl=1000)._want)
        drive(acquisition.run(True, -1.0))
        acquisition.abandon()
    until(lambda: [info.name for info in store_of(locks).inspect("", False)] == ["bad"])
    assert len(keeper._owed) == 1
    backend.withdraw = withdraw
    until(lambda: len(keeper._owed) == 0)


@pytest.mark.req("10 000 waiters, 100 000 leases")
def test_nothing_piles_up(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=86400.0)
    for _ in range(300):
        lease = lock.acquire()
        assert lease
        lease.release()
    with locks.lock("y", ttl=86400.0):
        for _ in range(50):
            assert locks.lock("y", ttl=86400.0).acquire(timeout=0.0001) is None
    keeper, store = locks._current.keeper, store_of(locks)
    until(lambda: keeper.idle)
    assert len(lock._leases) == 0
    assert len(keeper._claims) == 0
    assert len(keeper._agenda) <= 64 + 2
    assert store.leftovers() == []


@pytest.mark.req("cells")
def test_an_expired_cell_is_forgotten_and_waited_for_quietly(locks: holdfast.Locks) -> None:
    engine = locks._current
    port, backend, store = engine.port, engine.backend, store_of(locks)
    drive(backend.cell_write("c", b"v", expect=None, fence=None, ttl=0.01, deadline=port.now() + 5))
    until(lambda: drive(backend.cell_read("c", port.now() + 5)) is None)
    before = time.thread_time()
    assert drive(backend.cell_wait("c", 0, port.now() + 0.3)) is None
    assert time.thread_time() - before < 0.1
    drive(backend.cell_write("d", b"v", expect=None, fence=None, ttl=None, deadline=math.inf))
    assert "c" not in store._cells


@pytest.mark.req("law 9")
def test_owner_ids_appear_nowhere(locks: holdfast.Locks) -> None:
    lock = locks.lock("x")
    lease = lock.acquire()
    assert lease
    owner = lease._hold.claim.owner
    hold = lease._hold
    shown = f"{lease!r} {lock!r} {locks!r} {locks.inspect()!r} {hold.claim!r} {hold.loss()}"
    assert owner not in shown
    assert owner[:8] not in shown
    lease.release()


@pytest.mark.req("R12", "R1")
def test_an_exit_stack_never_leaves_with_somebody_elses_lease(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", reentrant=True)
    with lock as outer:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock).release()  # early; the stack's exit has nothing left to do
        assert outer.held
    semaphore = locks.semaphore("y", 2)
    with semaphore as guarded, contextlib.ExitStack() as stack:
        stack.enter_context(semaphore)
        stack.close()
        assert guarded.held


@pytest.mark.req("R12")
def test_exits_that_are_kept_and_called_again(locks: holdfast.Locks) -> None:
    lock = locks.lock("x")
    enter, leave = lock.__enter__, lock.__exit__  # as wrappers do
    for _ in range(3):
        lease = enter()
        leave(None, None, None)
        assert not lease.held


@pytest.mark.req("R12", "B3")
def test_an_async_with_is_no_orphan_while_it_is_left() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks:
            orphans = locks._current.keeper.orphans
            lock = locks.lock("x", reentrant=True)
            for _ in range(100):
                async with lock, lock:
                    pass
            assert not orphans
            assert not lock._coming

    asyncio.run(main())
    assert not hasattr(aio.connect(url()).lock("x"), "nonsense")
    assert hasattr(aio.connect(url()).lock("x"), "__aexit__")  # also without a loop


@pytest.mark.req("KeyboardInterrupt at any line")
def test_a_with_on_the_lease_itself_is_watched_too(locks: holdfast.Locks) -> None:
    """As if Ctrl-C struck before the first line of `__exit__`: the guard vanishes uncalled."""
    lock = locks.lock("x", ttl=1000)
    lease = lock.acquire()
    assert lease
    guard = lease.__exit__
    lease.__enter__()
    del guard
    locks._current.keeper.rouse()
    with locks.lock("x", timeout=10):
        pass
    assert not lease.held


@pytest.mark.req("R22")
def test_a_fixed_lease_renewed_by_hand_is_not_renewed_again(locks: holdfast.Locks) -> None:
    renewed: list[str] = []
    backend: Any = locks._current.backend
    renew = backend.renew

    async def watched(grants: Any, deadline: float) -> Any:
        renewed.extend(grant.claim.name for grant in grants)
        return await renew(grants, deadline)

    backend.renew = watched
    with locks.lock("busy", ttl=60, renew=0.1):
        lease = locks.lock("x", ttl=3.0, renew=False).acquire()
        assert lease
        lease.renew()
        assert lease.lost.wait(PATIENCE)
    assert renewed.count("x") == 1


@pytest.mark.req("law 4")
def test_a_waiter_withdrawn_under_its_feet_stands_in_line_again() -> None:
    """As when all tasks are cancelled, and one goes on to clean up: it must not spin."""

    async def main() -> None:
        async with aio.connect(name := url()) as locks, aio.connect(name) as other:
            holder = await other.lock("x", ttl=1000).acquire()
            assert holder
            waiter = asyncio.create_task(locks.lock("x", ttl=1000).acquire())
            while not (await other.inspect("x"))[0].waiters:
                await asyncio.sleep(0.005)
            engine = locks._current
            (claim,) = engine.keeper._claims.values()
            await engine.backend.withdraw(claim, True, engine.port.now() + 5)
            before = time.thread_time()
            while not (await other.inspect("x"))[0].waiters:
                await asyncio.sleep(0.005)
            assert time.thread_time() - before < 1.0
            await holder.release()
            lease = await asyncio.wait_for(waiter, 10)
            assert lease
            assert lease.held
            await lease.release()

    asyncio.run(main())


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


@pytest.mark.req("fork after acquire", "law 8")
def test_nothing_is_imported_when_a_host_is_looked_up() -> None:
    """A fork in the middle of an import leaves the child with one that nobody ends."""
    code = (
        "import sys, holdfast.aio, holdfast.ports.asyncio, concurrent.futures;"
        "assert 'concurrent.futures.thread' in sys.modules;"
        "assert 'ThreadPoolExecutor' in vars(concurrent.futures)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.req("R32", "client paused longer than its lease")
@pytest.mark.parametrize("answers", [True, False])
def test_a_silence_in_which_we_were_stopped_is_not_the_stores(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Whoever was stopped for longer than `request_timeout` asks once more before giving up; and
    not more than once, or a store that hangs on a slow host would be asked for ever."""
    with holdfast.connect(url(), request_timeout=0.2) as client:
        backend = client._current.backend
        attempt = backend.attempt
        stops: list[float] = []

        async def stopped(claim: Claim, queue: bool, deadline: float) -> Any:
            if answers and stops:
                return await attempt(claim, queue, deadline)
            stops.append(now())
            time.sleep(0.5)  # as SIGSTOP does
            return Unknown("the connection was lost")

        monkeypatch.setattr(backend, "attempt", stopped)
        if answers:
            with client.lock("x", timeout=20):
                pass
            assert len(stops) == 1
        else:
            with pytest.raises(Unavailable, match="did not answer"):
                client.lock("x", timeout=20).acquire()
            assert len(stops) == 2


@pytest.mark.req("R32", "server hangs")
def test_a_wait_that_fails_now_and_then_is_not_as_silent_as_it_was_long(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure counted from when it had begun: after a wait longer than `request_timeout` one
    hiccup of the store ended it."""
    store = locks._url
    with holdfast.connect(str(store), request_timeout=0.2) as client:
        lease = locks.lock("x").acquire()
        assert lease is not None
        backend = client._current.backend
        wait = backend.wait
        failed: list[float] = []

        async def fails(*arguments: Any) -> Any:
            if len(failed) == 3:
                lease.release()
                return await wait(*arguments)
            time.sleep(0.35)
            failed.append(now())
            raise Unavailable("a hiccup")

        monkeypatch.setattr(backend, "wait", fails)
        with client.lock("x", timeout=20):
            pass
        assert len(failed) == 3


class Struck(dict[str, Any]):
    """Ctrl-C just after the first thing was taken from it."""

    armed = True

    def pop(self, *arguments: Any) -> Any:
        taken = super().pop(*arguments)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return taken


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
def test_a_close_that_is_interrupted_leaves_nobody_believing(locks: holdfast.Locks) -> None:
    """The keeper took the hold from its table, and Ctrl-C struck before it had written down why:
    the second close gave the lock back, and its holder went on believing in it."""
    told = threading.Event()
    lease = locks.lock("x", ttl=60, on_lost=lambda loss: told.set()).acquire()
    assert lease is not None
    keeper = locks._current.keeper
    keeper._holds = Struck(keeper._holds)
    with pytest.raises(KeyboardInterrupt):
        locks.close()
    assert not lease.held
    assert told.wait(10)
    locks.close()
    assert store_of(locks).inspect("", False) == []
    assert lease.release() is False


@pytest.mark.req("B3", "law 5", "KeyboardInterrupt at any line")
def test_a_look_that_is_interrupted_tells_of_the_loss_all_the_same(locks: holdfast.Locks) -> None:
    """The holder's own look noticed that its time was over, and Ctrl-C struck there."""
    told = threading.Event()
    lease = locks.lock("x", ttl=60, on_lost=lambda loss: told.set()).acquire()
    assert lease is not None
    keeper = locks._current.keeper
    keeper._holds = Struck(keeper._holds)
    lease._hold.until = now()
    with pytest.raises(KeyboardInterrupt):
        lease.lost.is_set()
    assert told.wait(10)
    assert lease.lost.wait(5) is True
    assert lease.release() is False
    until(lambda: keeper.idle, "it is given back")


@pytest.mark.req("law 5", "R3")
def test_a_release_while_the_loss_is_written_down_says_that_it_was_lost(
    locks: holdfast.Locks,
) -> None:
    """The keeper had taken the hold from its table, and another thread released it before the
    keeper could write down that it was lost: `release` said True, and `with` raised nothing."""
    lease = locks.lock("x", ttl=60).acquire()
    assert lease is not None
    taken, go = threading.Event(), threading.Event()

    class Slow(dict[str, Any]):
        def pop(self, *arguments: Any) -> Any:
            hold = super().pop(*arguments)
            if threading.current_thread() is loser:
                taken.set()
                go.wait(10)
            return hold

    keeper = locks._current.keeper
    keeper._holds = Slow(keeper._holds)
    said: list[bool] = []
    loser = threading.Thread(target=lambda: keeper.lose(lease._hold, "gone", gone=True))
    releaser = threading.Thread(target=lambda: said.append(lease.release()))
    loser.start()
    assert taken.wait(10)
    releaser.start()
    releaser.join(0.2)
    go.set()
    loser.join(10)
    releaser.join(10)
    assert said == [False]


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


@pytest.mark.req("R4")
def test_a_callback_that_comes_with_the_loss_has_no_other_called_twice(
    locks: holdfast.Locks,
) -> None:
    lease = locks.lock("x", ttl=60).acquire()
    assert lease is not None
    calls: list[str] = []
    lease.on_lost(lambda loss: calls.append("first"))
    hold, keeper = lease._hold, locks._current.keeper

    class Late(list[Any]):
        def lose(self) -> None:
            if not hold.end:
                keeper.lose(hold, "gone", gone=True)

        def __iter__(self) -> Iterator[Any]:
            before = list.__iter__(self)
            self.lose()
            return before

        def append(self, item: Any) -> None:
            self.lose()
            super().append(item)

    hold.callbacks = Late(hold.callbacks)
    lease.on_lost(lambda loss: calls.append("second"))
    until(lambda: "second" in calls, "it is told")
    time.sleep(0.1)
    assert sorted(calls) == ["first", "second"]


@pytest.mark.req("R4", "R12")
def test_a_callback_that_comes_while_an_inner_lease_leaves_is_kept(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=60, reentrant=True)
    outer, inner = lock.acquire(), lock.acquire()
    assert outer is not None
    assert inner is not None
    inner.on_lost(lambda loss: None)
    hold, told, listen = outer._hold, threading.Event(), outer.on_lost

    class Late(list[Any]):
        armed = True

        def __iter__(self) -> Iterator[Any]:
            before = iter(self[:])
            if self.armed:
                self.armed = False
                listen(lambda loss: told.set())  # by another thread, in fact
            return before

    hold.callbacks = Late(hold.callbacks)
    inner.release()
    locks._current.keeper.lose(hold, "gone", gone=True)
    assert told.wait(10)


@pytest.mark.req("law 5", "asyncio cancellation at any await")
def test_what_is_taken_while_a_cancelled_keeper_says_farewell_is_kept() -> None:
    """The old keeper was still alive, so no new one was started; then it ended."""

    async def main() -> None:
        async with aio.connect(url()) as locks:
            backend: Any = locks._current.backend
            old = await locks.lock("old", ttl=60).acquire()
            assert old is not None
            await asyncio.sleep(0.05)
            withdraw, asked, go = backend.withdraw, asyncio.Event(), asyncio.Event()

            async def slow(*arguments: Any) -> Any:
                asked.set()
                await go.wait()
                return await withdraw(*arguments)

            backend.withdraw = slow
            for task in asyncio.all_tasks():
                if task.get_name() == "holdfast-keeper":
                    task.cancel()
            await asked.wait()
            async with locks.lock("new", ttl=60, renew=0.1) as lease:
                go.set()
                await renewed(lease)

    asyncio.run(main())


@pytest.mark.req("R1", "law 3", "asyncio cancellation at any await")
def test_a_grant_that_a_cancelled_keeper_withdrew_on_its_way_is_not_believed() -> None:
    """Its farewell withdraws what is being asked for; who asked was not cancelled, and believed the
    answer that had been given before: two held."""

    async def main() -> None:
        name = url()
        async with aio.connect(name) as locks, aio.connect(name) as other:
            backend: Any = locks._current.backend
            async with locks.lock("begun"):
                pass
            attempt, granted, go = backend.attempt, asyncio.Event(), asyncio.Event()

            async def slow(*arguments: Any) -> Any:
                answer = await attempt(*arguments)
                granted.set()
                await go.wait()
                return answer

            backend.attempt = slow
            taking = asyncio.create_task(locks.lock("x", ttl=60).acquire())
            await granted.wait()
            keepers = [t for t in asyncio.all_tasks() if t.get_name() == "holdfast-keeper"]
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)
            rival = await other.lock("x", ttl=60).acquire(timeout=10)
            assert rival is not None
            go.set()
            await asyncio.sleep(0.2)
            assert rival.held
            assert not taking.done()  # it stands in line
            await rival.release()
            lease = await taking
            assert lease is not None
            assert lease.held

    asyncio.run(main())


@pytest.mark.req("law 5", "asyncio cancellation at any await")
def test_a_keeper_that_is_cancelled_before_its_first_step_begins_all_the_same() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks, locks.lock("x", ttl=60, renew=0.1) as lease:
            keepers = [t for t in asyncio.all_tasks() if t.get_name() == "holdfast-keeper"]
            assert len(keepers) == 1
            keepers[0].cancel()
            await renewed(lease)

    asyncio.run(main())


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
def test_an_interrupt_while_the_keeper_is_started_makes_no_second_one(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was made, and had not begun: it did not look alive, and another was started."""
    how = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    start: Any = getattr(threading, how)
    made: list[threading.Thread] = []
    go = threading.Event()

    def struck(function: Any, *more: Any, **options: Any) -> Any:
        if made:
            return start(function, *more, **options)
        made.append(function.__self__)

        def late(*arguments: Any) -> None:
            go.wait(10)
            function(*arguments)

        start(late, *more, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading, how, struck)
    with pytest.raises(KeyboardInterrupt):
        locks.lock("x").acquire()
    with locks.lock("x") as lease:
        go.set()
        until(lambda: made[0].ident is not None, "it begins")
        made[0].join(10)
        assert not made[0].is_alive()
        assert lease.held
    keeper = locks._current.keeper._task
    assert keeper is not None
    assert keeper.alive


AT_EXIT = """
import atexit, sys

def last():
    try:
        locks.lock("y").acquire(timeout=0.1)
    except holdfast.Closed:
        print("refused", flush=True)

class Last:
    def __del__(self, last=last):
        last()

if sys.argv[1] == "handler":
    atexit.register(last)  # before holdfast's own, so it is called after it
import holdfast
locks = holdfast.connect("memory://")
if sys.argv[2] == "held":
    lease = locks.lock("x").acquire()
if sys.argv[1] == "finaliser":
    it = Last()
"""


@pytest.mark.req("interpreter exits holding a lock")
@pytest.mark.parametrize("how", ["handler held", "finaliser held", "finaliser unused"])
def test_who_acquires_when_the_interpreter_has_said_farewell_is_refused(how: str) -> None:
    """It was taken for a daemon thread, and slept for a day; or for a thread that never began."""
    ran = subprocess.run(
        [sys.executable, "-c", AT_EXIT, *how.split()],
        timeout=60, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "refused\n"
