"""Bugs of the keeper and of `close` that were found once stay found: one test each.

What each was and how it showed is in docs/concepts/found-bugs.md.

Over 400 lines: a list of cases, each read by itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.unit.found.memory import renewed, store_of, url
from tests.waiting import PATIENCE, until

import holdfast
from holdfast import aio
from holdfast.core.acquire import Acquisition
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.types import Claim, Released, Unknown


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


@pytest.mark.req("law 3", "law 4")
def test_what_is_owed_to_a_store_that_is_far_away_is_paid(locks: holdfast.Locks) -> None:
    """A withdrawal had a quarter of a second, each time: what needs longer was owed for ever."""
    backend: Any = locks._current.backend
    withdraw, patience = backend.withdraw, list[float]()

    async def slow(claim: Claim, tombstone: bool, deadline: float) -> Any:
        patience.append(deadline - now())
        if patience[-1] < 0.5:
            return Unknown("it has not answered yet")
        return await withdraw(claim, tombstone, deadline)

    backend.withdraw = slow
    keeper = locks._current.keeper
    with locks.lock("y") as other:
        acquisition = Acquisition(locks._current, locks.lock("x", ttl=1000)._want)
        drive(acquisition.run(True, -1.0))
        acquisition.abandon()
        until(lambda: not keeper._owed, "it is paid")
        assert other.held
    assert patience[0] < 0.5  # at first nobody is kept waiting for so long
    assert [info.name for info in store_of(locks).inspect("", False)] == []


@pytest.mark.req("law 3", "law 4")
@pytest.mark.parametrize("count", [2, 10])
def test_several_that_are_owed_to_a_store_that_is_far_away_are_paid(
    locks: holdfast.Locks, count: int
) -> None:
    """The first took all the time that there was, so the round had not failed: there was never a
    longer one, nor a pause between two."""
    backend: Any = locks._current.backend
    withdraw, patience = backend.withdraw, list[float]()

    async def slow(claim: Claim, tombstone: bool, deadline: float) -> Any:
        patience.append(deadline - now())
        await locks._current.port.sleep(min(0.3, max(0.0, patience[-1])))
        if patience[-1] < 0.3:
            return Unknown("it has not answered yet")
        return await withdraw(claim, tombstone, deadline)

    keeper = locks._current.keeper
    with locks.lock("y") as other:
        for number in range(count):
            acquisition = Acquisition(locks._current, locks.lock(f"x{number}", ttl=1000)._want)
            drive(acquisition.run(True, -1.0))
            backend.withdraw = slow
            acquisition.abandon()
        until(lambda: not keeper._owed, "they are paid")
        assert other.held
    assert len(patience) < 3 * count + 10


@pytest.mark.req("R20", "R21")
def test_a_renewal_that_takes_longer_than_a_tick(locks: holdfast.Locks) -> None:
    """As where a connection must be made first, far away: each try had a second, and began anew."""
    backend: Any = locks._current.backend
    renew, patience = backend.renew, list[float]()

    async def slow(grants: Any, deadline: float) -> Any:
        patience.append(deadline - now())
        if patience[-1] < 1.8:
            return [Unknown("it has not answered yet")] * len(grants)
        return await renew(grants, deadline)

    backend.renew = slow
    with locks.lock("x", ttl=60, renew=0.1) as lease:
        until(lambda: len(patience) > 2 and patience[-1] < 1.8, "renewed, and tried again")
        assert lease.held
    assert patience[0] <= 1.0  # at first no loss is told later than it would be anyway
    assert max(patience) > 1.8


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
