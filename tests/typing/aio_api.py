"""What type checkers must say about the asyncio API. Only read, by `tests/test_typing.py`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from holdfast import Capabilities, Leader, LeaseLost, LockInfo, Mode, aio


async def told(loss: LeaseLost) -> None:
    assert_type(loss.reason, str)


async def everything() -> None:
    async with aio.connect("memory://", label="typing") as locks:
        assert_type(locks, aio.Locks)
        assert_type(locks.capabilities, Capabilities)
        lock = locks.lock("a", ttl=30, renew=False, on_lost=told, cancel_on_lost=False)
        assert_type(lock, aio.Lock)
        assert_type(lock.name, str)
        assert_type(await lock.locked(), bool)
        assert_type(await lock.acquire(), aio.Lease | None)
        assert_type(await lock.acquire(blocking=False), aio.Lease | None)
        assert_type(await lock.acquire(timeout=5), aio.Lease | None)
        assert_type(await lock.release(), bool)

        async with lock as lease:
            assert_type(lease, aio.Lease)
            assert_type(lease.fence, int)
            assert_type(lease.name, str)
            assert_type(lease.mode, Mode)
            assert_type(lease.held, bool)
            assert_type(lease.uncertain, bool)
            assert_type(lease.remaining(), float)
            assert_type(await lease.lost.wait(1.0), bool)
            assert_type(lease.lost.is_set(), bool)
            assert_type(await lease.renew(), float)
            assert_type(lease.check(), None)
            assert_type(lease.detach(), None)
            assert_type(await lease.release(), bool)
            lease.on_lost(told)

        if tried := await lock.acquire(blocking=False):
            async with tried as same:
                assert_type(same, aio.Lease)

        multi = locks.multi("a", "b", cancel_on_lost=False)
        assert_type(multi, aio.MultiLock)
        assert_type(await multi.acquire(timeout=1), aio.MultiLease | None)
        async with multi as both:
            assert_type(both.fences, dict[str, int])
        stripes = locks.stripes("s", 16)
        assert_type(stripes.of("key"), aio.Lock)
        assert_type(stripes.all(), aio.MultiLock)
        async with stripes.any() as stripe:
            assert_type(stripe, aio.StripeLease)
            assert_type(stripe.stripe, int)

        rwlock = locks.rwlock("b")
        assert_type(rwlock, aio.RWLock)
        assert_type(rwlock.read(), aio.Lock)
        async with rwlock.write() as writer:
            assert_type(writer, aio.Lease)

        semaphore = locks.semaphore("c", 3, take=2)
        assert_type(semaphore, aio.Semaphore)
        assert_type(await semaphore.acquire(), aio.Permit | None)
        async with semaphore as permit:
            assert_type(permit, aio.Permit)
            assert_type(permit.fence, int | None)

        @locks.locked("report:{user}", ttl=5)
        async def report(user: int, *, year: int = 2026) -> str:
            return f"{user} {year}"

        await assert_type(report(1, year=2025), Coroutine[Any, Any, str])
        assert_type(await report(1), str)
        positional: Callable[[int], Coroutine[Any, Any, str]] = report
        assert_type(await positional(1), str)

        options: aio.AioLockOptions = {"ttl": 5, "cancel_on_lost": False}
        assert_type(locks.lock("d", **options), aio.Lock)
        assert_type(await locks.inspect("a"), list[LockInfo])
        assert_type(await locks.evict("a"), int)
        assert_type(await locks.close(), None)

        async def compute() -> str:
            return "token"

        once = locks.once("e", 60, compute, ahead=6, lease=30, timeout=5)
        assert_type(once, aio.Once[str])
        assert_type(await once.get(timeout=1), str)
        assert_type(await once.invalidate("token"), None)
        async with once.hold() as using:
            assert_type(using.value, str)

        election = locks.election("f", ttl=5)
        assert_type(election, aio.Election)
        assert_type(await election.campaign({"port": 1}, timeout=5), aio.Leadership | None)
        assert_type(await election.leader(), Leader | None)
        assert_type(await election.resign(), bool)
        async for leader in election.observe():
            assert_type(leader, Leader | None)

        async def lead(leadership: aio.Leadership) -> int:
            assert_type(await leadership.proclaim("x"), None)
            return 1

        assert_type(await election.run_when_leader(lead), int)

        latch = locks.latch("g", 3)
        assert_type(latch, aio.Latch)
        assert_type(await latch.count_down(2), int)
        assert_type(await latch.wait(1), bool)

        barrier = locks.barrier("h", 3, ttl=5)
        assert_type(barrier, aio.Barrier)
        assert_type(await barrier.wait(timeout=1), int)
        assert_type(await barrier.broken(), bool)
