"""The keeper's own faults: its thread dies, its backend breaks, the event loop is blocked.

Whatever happens to it, a lease is lost at its local deadline, and its holder is told (law 5).
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLost, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.types import Grant, Lost, Renewed, Unknown
from tests.waiting import until

TTL = 0.4
"""For leases that shall be lost. Who shall keep one has `PATIENT`."""
PATIENT = 60.0
KILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
numbers = itertools.count()


def url() -> str:
    return f"memory://keeper{next(numbers)}"


def break_renewal(locks: Any, renew: Any) -> MemoryBackend:
    backend = locks._current.backend
    assert isinstance(backend, MemoryBackend)
    backend.renew = renew  # type: ignore[method-assign]
    return backend


def count_renewals(locks: Any) -> list[int]:
    """How many leases each renewal was for, from now on."""
    renew = locks._current.backend.renew
    sizes: list[int] = []

    async def counted(
        grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        sizes.append(len(grants))
        return await renew(grants, deadline)  # type: ignore[no-any-return]

    break_renewal(locks, counted)
    return sizes


def kill(locks: holdfast.Locks) -> None:
    keeper = locks._current.keeper
    until(lambda: not keeper._fresh, "it has looked at its leases")  # so it has begun
    thread = keeper_of(locks)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )
    thread.join(25)
    assert not thread.is_alive()


def keeper_of(locks: holdfast.Locks) -> threading.Thread:
    task: Any = locks._current.keeper._task
    thread = task._thread
    assert isinstance(thread, threading.Thread)
    return thread


@KILLED
@pytest.mark.req("R21", "B2", "law 5", "renewal thread dies")
def test_a_dead_keeper_means_a_lost_lease_and_it_is_said() -> None:
    with holdfast.connect(url()) as locks:
        told = threading.Event()
        lease = locks.lock("x", ttl=TTL, on_lost=lambda loss: told.set()).acquire()
        assert lease
        kill(locks)
        assert lease.lost.wait(5)  # needs no keeper
        assert not lease.held
        assert told.wait(5)
        with pytest.raises(LeaseLost, match="time ran out"):
            lease.check()
        assert lease.release() is False


@KILLED
@pytest.mark.req("R21", "renewal thread dies")
def test_a_dead_keeper_is_started_again_by_the_next_acquire() -> None:
    with holdfast.connect(url()) as locks:
        with locks.lock("x", ttl=PATIENT):
            kill(locks)
        renewed = count_renewals(locks)
        with locks.lock("y", ttl=PATIENT, renew=0.05) as lease:
            until(lambda: len(renewed) > 1, "renewed more than once")
            assert lease.held


@pytest.mark.req("R21", "law 5")
def test_one_broken_renewal_does_not_end_the_others() -> None:
    with holdfast.connect(url()) as locks:
        renew = locks._current.backend.renew
        broken = 0

        async def sometimes(
            grants: Sequence[Grant], deadline: float
        ) -> Sequence[Renewed | Lost | Unknown]:
            nonlocal broken
            broken += 1
            if broken == 1:
                raise ZeroDivisionError
            if broken == 2:
                return []  # a backend that cannot count
            return await renew(grants, deadline)

        with locks.lock("x", ttl=PATIENT, renew=0.05) as lease:
            break_renewal(locks, sometimes)
            until(lambda: broken > 4, "it is renewed again and again")
            assert lease.held


@pytest.mark.req("R21", "B2", "law 5", "server hangs")
def test_silent_renewals_lose_at_the_local_deadline() -> None:
    with holdfast.connect(url()) as locks:

        async def silent(grants: Sequence[Grant], deadline: float) -> Sequence[Unknown]:
            await locks._current.port.sleep(max(0.0, deadline - locks._current.port.now()))
            return [Unknown("silence")] * len(grants)

        break_renewal(locks, silent)
        began = time.monotonic()
        told = threading.Event()
        lease = locks.lock("x", ttl=TTL, on_lost=lambda loss: told.set()).acquire()
        assert lease
        assert told.wait(10)
        assert time.monotonic() - began >= TTL * 0.9
        assert not lease.held


@pytest.mark.req("R21", "B2", "event loop blocked")
def test_a_blocked_event_loop_loses_its_lease_and_hears_of_it() -> None:
    async def main() -> None:
        async with aio.connect(url()) as locks:
            with pytest.raises(LeaseLost):
                async with locks.lock("x", ttl=TTL) as lease:
                    time.sleep(TTL * 1.5)  # the fault itself
                    assert not lease.held  # before the loop had a chance to run
                    await asyncio.sleep(10)
            async with locks.lock("x", timeout=5):
                pass

    asyncio.run(main())


@pytest.mark.req("R20", "law 6", "thousands of renewals due at once")
def test_many_leases_are_renewed_in_few_batches() -> None:
    with holdfast.connect(url()) as locks:
        sizes = count_renewals(locks)
        leases = [locks.lock(f"n{n}", ttl=PATIENT, renew=0.5).acquire() for n in range(3000)]
        until(lambda: sum(sizes) >= 3000, "they are renewed")
        taken, before = len(sizes), sum(sizes)  # some were due while the last were being taken
        until(lambda: sum(sizes) >= before + 9000, "and again")
        assert max(sizes) <= 1000
        assert len(sizes) - taken <= (sum(sizes) - before) / 20
        keepers = [t for t in threading.enumerate() if t is keeper_of(locks)]
        assert len(keepers) == 1
        assert all(lease and lease.held for lease in leases)


@pytest.mark.req("R21")
def test_a_forgotten_client_ends_its_thread() -> None:
    locks = holdfast.connect(url())
    with locks.lock("x"):
        pass
    thread = keeper_of(locks)
    del locks
    thread.join(25)
    assert not thread.is_alive()


@pytest.mark.req("B3", "law 4")
def test_a_dropped_lease_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.connect(url()) as locks:
        assert locks.lock("x", ttl=1000).acquire()  # and forgotten
        with locks.lock("x", timeout=25):
            pass
        assert "dropped" in caplog.text


def test_a_lock_object_keeps_its_leases_alive() -> None:
    with holdfast.connect(url()) as locks:
        lock = locks.lock("x", ttl=1000)
        assert lock.acquire()
        time.sleep(1.2)  # longer than the keeper's tick
        assert locks.lock("x").acquire(blocking=False) is None
        assert lock.release()
