"""Cancelled anywhere, nothing stays behind (law 4): asyncio's cancel at each await."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast import Unavailable, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on, refused, take

STEPS = 24
"""Cancel after 0, 1, 2, … steps of the loop, and from the half on after growing moments too, so
that also answers that come over a network are met at every stage."""


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
    if count > STEPS // 2:
        await asyncio.sleep((count - STEPS // 2) * 0.0003)


async def cancelled(task: asyncio.Task[aio.Lease | aio.Permit | None]) -> None:
    """Cancel it; if the lease was there first, it is the caller's, who gives it back."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        lease = await task
        if lease is not None:
            await lease.release()


class Cancellation(Theme):
    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4")
    @only_on("aio")
    async def test_acquire_of_a_free_lock(self, api: Api) -> None:
        for count in range(STEPS):
            task = api.spawn(api.here.lock("x").acquire())
            await steps(count)
            await cancelled(task)
            await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4")
    @only_on("aio")
    async def test_acquire_of_a_busy_lock(self, api: Api) -> None:
        for count in range(STEPS):
            lease = await take(api.there.lock("x"))
            task = api.spawn(api.here.lock("x").acquire())
            await steps(count)
            await cancelled(task)
            await api.in_line("x", 0)
            assert lease.held
            await lease.release()
            await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4")
    @only_on("aio")
    async def test_a_waiter_at_the_moment_it_is_granted(self, api: Api) -> None:
        """The grant and the cancellation cross: the next in line has it."""
        for count in range(STEPS):
            lease = await take(api.there.lock("x"))
            first = await api.queue_up(api.here.lock("x"))
            second = await api.queue_up(api.there.lock("x"))
            releasing = api.spawn(lease.release())
            await steps(count)
            await cancelled(first)
            await releasing
            handed_over = await second
            assert handed_over is not None
            assert handed_over.held
            await handed_over.release()
            await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4")
    @only_on("aio")
    async def test_a_waiter_at_the_moment_its_time_is_up(self, api: Api) -> None:
        lease = await take(api.there.lock("x"))
        for count in range(STEPS):
            task = api.spawn(api.here.lock("x").acquire(timeout=0.002))
            await steps(count)
            with contextlib.suppress(Unavailable):  # a store may need longer than that to answer
                await cancelled(task)
            await api.in_line("x", 0)
        await lease.release()
        await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4")
    @only_on("aio")
    async def test_release(self, api: Api) -> None:
        for count in range(1, STEPS):  # one that is cancelled before it began has done nothing
            lease = await take(api.here.lock("x"))
            task = api.spawn(lease.release())
            await steps(count)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert not lease.held
            await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4", "R12")
    @only_on("aio")
    async def test_with(self, api: Api) -> None:
        """Cancelled while it enters, inside, and while it leaves."""

        async def body() -> None:
            async with api.here.lock("x"):
                await steps(3)

        for count in range(STEPS):
            task = api.spawn(body())
            await steps(count)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4", "R5")
    @only_on("aio")
    async def test_re_entry(self, api: Api) -> None:
        """A re-entry that was cancelled is not counted; the outer lease stays."""
        lock = api.here.lock("x", renew=False, reentrant=True)

        async def body(count: int) -> None:
            outer = await take(lock)
            loop = asyncio.get_running_loop()
            task = asyncio.current_task()
            assert task is not None
            handle = loop.call_later(count * 0.0001, task.cancel)
            try:
                inner = await take(lock)
                await inner.release()
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                task.uncancel()
            finally:
                handle.cancel()
            assert outer.held
            assert await refused(api.there.lock("x"))
            assert await outer.release() is True

        for count in range(STEPS):
            await api.apart(body(count))
            await api.free("x")

    @pytest.mark.req("asyncio cancellation at any await", "B3", "law 4")
    @only_on("aio")
    async def test_a_timeout_from_outside(self, api: Api) -> None:
        lease = await take(api.there.lock("x"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await api.here.lock("x").acquire()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(api.here.lock("x").acquire(), 0.05)
        await api.in_line("x", 0)
        await lease.release()
        await api.free("x")
