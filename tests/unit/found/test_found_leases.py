"""Bugs of leases, locks and lines that were found once stay found: one test each.

What each was and how it showed is in docs/concepts/found-bugs.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.unit.found.memory import store_of, url
from tests.waiting import until

import holdfast
from holdfast import NotHeld, Unavailable, aio
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.types import Claim, Unknown


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


@pytest.mark.req("R12", "B3")
def test_a_finaliser_among_many_leases_does_not_disturb_the_release_of_another() -> None:
    """Python 3.11: what went through the lock's leases made objects, and the collector, called for
    those, took one of the leases away."""
    with holdfast.connect(url()) as locks:
        permits = locks.semaphore("x", 10_000)

        def inside() -> Iterator[None]:
            with permits:
                yield

        kept = [permits.acquire() for _ in range(3000)]
        for _ in range(20):
            cycle: list[Any] = [inside()]
            cycle.append(cycle)
            next(cycle[0])
            del cycle
            assert permits.acquire()
            permits.release()
        assert all(kept)


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
