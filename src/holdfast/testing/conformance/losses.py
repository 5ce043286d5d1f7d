"""Loss is an event: whoever holds a lease is told when it is gone (R21, B2)."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from holdfast import LeaseLost, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on, refused, take


class Ear:
    """An on_lost callback that can be waited for, whichever thread it is called in."""

    def __init__(self) -> None:
        self.heard: list[LeaseLost] = []
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __call__(self, loss: LeaseLost) -> None:
        self.heard.append(loss)
        self._loop.call_soon_threadsafe(self._event.set)

    async def hears(self) -> LeaseLost:
        await asyncio.wait_for(self._event.wait(), LONG)
        return self.heard[0]


async def lose(api: Api, lease: aio.Lease | aio.Permit) -> None:
    """Have the operator take the lock away, and wait until the holder has noticed."""
    assert await api.there.evict(lease.name) >= 1
    assert await lease.lost.wait(LONG) is True


class Losses(Theme):
    @pytest.mark.req("R21", "B2", "eviction")
    async def test_an_eviction_is_noticed_at_the_renewal(self, api: Api) -> None:
        api.need_inspection()
        option, method = Ear(), Ear()
        lease = await take(api.here.lock("x", renew=api.often, on_lost=option))
        lease.on_lost(method)
        assert not lease.lost.is_set()
        await lose(api, lease)
        assert lease.lost.is_set()
        assert not lease.held
        assert lease.remaining() == 0
        for ear in (option, method):
            loss = await ear.hears()
            assert loss.name == "x"
            assert loss.reason
            if lease.mode in api.capabilities.fencing:
                assert loss.fence == lease.fence
        late = Ear()
        lease.on_lost(late)  # after the fact: told at once
        await late.hears()
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert await lease.release() is False
        await asyncio.sleep(0.05)
        assert [len(ear.heard) for ear in (option, method, late)] == [1, 1, 1]

    @pytest.mark.req("R21", "B2", "key deleted by hand, FLUSHALL")
    async def test_a_key_deleted_by_hand_is_noticed(self, api: Api) -> None:
        ear = Ear()
        lease = await take(api.here.lock("x", renew=api.often, on_lost=ear))
        api.strategy.steal("x")
        await ear.hears()
        assert not lease.held
        assert await lease.release() is False
        await api.free("x")

    @pytest.mark.req("B2", "key deleted by hand, FLUSHALL")
    async def test_a_line_deleted_by_hand_forms_again(self, api: Api) -> None:
        lease = await take(api.here.lock("x", renew=api.often))
        waiter = await api.queue_up(api.there.lock("x", ttl=api.brief))
        api.strategy.steal("x")
        handed_over = await waiter
        assert handed_over is not None
        assert await lease.lost.wait(LONG) is True
        assert handed_over.held
        await handed_over.release()

    @pytest.mark.req("R21", "B2")
    async def test_a_lease_that_expired_in_the_store_is_noticed(self, api: Api) -> None:
        lease = await take(api.here.lock("x", renew=api.often))
        api.strategy.expire_now("x")
        assert await lease.lost.wait(LONG) is True
        assert not lease.held
        await api.free("x")

    @pytest.mark.req("B2")
    async def test_with_says_at_its_end_that_the_lease_was_lost(self, api: Api) -> None:
        api.need_inspection()
        with pytest.raises(LeaseLost, match="'x'"):
            async with api.here.lock("x", renew=api.often) as lease:
                await lose(api, lease)
        with pytest.raises(LeaseLost, match="'x'"):
            async with await take(api.here.lock("x", renew=api.often)) as lease:
                await lose(api, lease)
        await api.free("x")

    @pytest.mark.req("B2", "exception in the body")
    async def test_a_loss_masks_no_exception_of_the_body(self, api: Api) -> None:
        api.need_inspection()

        async def body() -> None:
            async with api.here.lock("x", renew=api.often) as lease:
                with contextlib.suppress(asyncio.CancelledError):
                    await lose(api, lease)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await body()
        await api.free("x")

    @pytest.mark.req("B2")
    @only_on("aio")
    async def test_the_body_is_cancelled(self, api: Api) -> None:
        api.need_inspection()

        async def body() -> None:
            async with api.here.lock("x", renew=api.often):
                await api.there.evict("x")
                await asyncio.sleep(LONG)
                pytest.fail("the body went on without its lock")

        with pytest.raises(LeaseLost):
            await body()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left over

    @pytest.mark.req("B2")
    @only_on("aio")
    async def test_the_body_is_not_cancelled_if_so_wished(self, api: Api) -> None:
        api.need_inspection()
        went_on = False

        async def body() -> None:
            nonlocal went_on
            async with api.here.lock("x", renew=api.often, cancel_on_lost=False) as lease:
                await lose(api, lease)
                await asyncio.sleep(0.02)
                went_on = True

        with pytest.raises(LeaseLost):
            await body()
        assert went_on

    @pytest.mark.req("B2", "B3")
    @only_on("aio")
    async def test_a_cancellation_from_outside_wins(self, api: Api) -> None:
        api.need_inspection()

        async def body() -> None:
            async with api.here.lock("x", renew=api.often) as lease:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(LONG)  # the loss
                assert not lease.held
                await asyncio.sleep(LONG)  # the cancellation

        task = api.spawn(body())
        await api.until(api.here.lock("x").locked, "the body holds the lock")
        await api.there.evict("x")

        async def cancelled_by_loss() -> bool:
            return task.cancelling() > 0

        await api.until(cancelled_by_loss, "the loss reached the body")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @pytest.mark.req("R21", "event loop blocked")
    @only_on("aio")
    async def test_a_blocked_event_loop_loses_its_lease_and_sees_it(self, api: Api) -> None:
        """No renewal runs; the first look after it computes, and needs no timer to have fired."""
        lease = await take(api.here.lock("x", ttl=api.short))
        time.sleep(1.2 * api.short)  # noqa: ASYNC251 - this is the fault
        assert not lease.held
        assert lease.lost.is_set()
        with pytest.raises(LeaseLost):
            lease.check()
        assert await lease.release() is False
        await api.free("x")

    @pytest.mark.req("B2", "R12")
    async def test_close_tells_the_holders(self, api: Api) -> None:
        ear = Ear()
        client = api.connect()
        lease = await take(client.lock("x", on_lost=ear))
        waiting = api.spawn(lease.lost.wait())
        await client.close()
        assert await asyncio.wait_for(waiting, LONG) is True
        assert "closed" in (await ear.hears()).reason
        with pytest.raises(LeaseLost):
            lease.check()

    @pytest.mark.req("B2")
    async def test_a_release_is_no_loss(self, api: Api) -> None:
        ear = Ear()
        lease = await take(api.here.lock("x", on_lost=ear))
        waiting = api.spawn(lease.lost.wait())
        assert await lease.lost.wait(0.01) is False
        await lease.release()
        assert await asyncio.wait_for(waiting, LONG) is False
        assert not lease.lost
        await asyncio.sleep(0.02)
        assert not ear.heard

    @pytest.mark.req("B2")
    async def test_a_broken_callback_disturbs_nobody(
        self, api: Api, caplog: pytest.LogCaptureFixture
    ) -> None:
        api.need_inspection()
        ear = Ear()

        def broken(loss: LeaseLost) -> None:
            raise ZeroDivisionError

        lease = await take(api.here.lock("x", renew=api.often, on_lost=broken))
        other = await take(api.here.lock("y", renew=api.often))
        lease.on_lost(ear)
        await lose(api, lease)
        await ear.hears()
        await api.renewed(other)
        assert other.held
        await other.release()
        assert await refused(api.here.lock("x")) is False
