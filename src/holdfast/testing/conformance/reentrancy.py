"""Taking a lock again: counted, by the same thread or task only (R5)."""

from __future__ import annotations

import time

import pytest

from holdfast import LeaseLost, Mode
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on, refused, take


class Reentrancy(Theme):
    @pytest.mark.req("R5")
    async def test_it_is_free_when_the_count_is_back_at_zero(self, api: Api) -> None:
        lock = api.here.lock("x", reentrant=True)
        leases = [await take(lock) for _ in range(3)]
        assert all(lease.held for lease in leases)
        while leases:
            assert await refused(api.there.lock("x"))
            assert await leases.pop().release() is True
        assert not await refused(api.there.lock("x"))

    @pytest.mark.req("R5")
    async def test_in_any_order_and_each_once(self, api: Api) -> None:
        lock = api.here.lock("x", reentrant=True)
        outer, inner = await take(lock), await take(lock)
        assert await outer.release() is True
        assert not outer.held
        assert inner.held
        assert await outer.release() is True  # again: does not count twice
        assert inner.held
        assert await refused(api.there.lock("x"))
        assert await inner.release() is True
        await api.free("x")

    @pytest.mark.req("R5", "R12")
    async def test_nested_with(self, api: Api) -> None:
        lock = api.here.lock("x", reentrant=True)
        async with lock as outer:
            async with lock as inner, api.here.lock("x", reentrant=True) as another:
                assert outer.held
                assert inner.held
                assert another.held
            assert outer.held
            assert await refused(api.there.lock("x"))
            with pytest.raises(ZeroDivisionError):
                async with lock:
                    raise ZeroDivisionError
            assert outer.held
            assert await refused(api.there.lock("x"))
        await api.free("x")

    @pytest.mark.req("R5", "R12")
    async def test_lock_release_counts_down(self, api: Api) -> None:
        lock = api.here.lock("x", reentrant=True)
        assert await lock.acquire()
        assert await lock.acquire()
        assert await lock.release() is True
        assert await refused(api.there.lock("x"))
        assert await lock.release() is True
        await api.free("x")

    @pytest.mark.req("R5", "R1")
    async def test_others_do_not_enter(self, api: Api) -> None:
        """Another thread or task of the same client, with the same lock object."""
        lock = api.here.lock("x", reentrant=True)
        async with lock:
            assert await api.apart(refused(lock))
            assert await refused(api.there.lock("x", reentrant=True))
            assert await refused(api.here.lock("x"))  # and not without being reentrant
        await api.free("x")

    @pytest.mark.req("R5", "R1")
    async def test_nobody_inherits_it_from_the_dead(self, api: Api) -> None:
        """Idents of threads are reused (a hazard shown by a run): a new one is not the old one."""
        lock = api.here.lock("x", reentrant=True)
        lease = await api.apart(take(lock))  # that thread or task has ended, its lease has not
        for _ in range(20):
            assert await api.apart(refused(lock))
        assert lease.held
        assert await lease.release() is True

    @pytest.mark.req("R5")
    async def test_re_entry_costs_no_round_trip(self, api: Api) -> None:
        api.strategy.requests()
        lock = api.here.lock("x", reentrant=True)
        async with lock:
            before = api.strategy.requests()
            async with lock, lock:
                pass
            assert api.strategy.requests() == before

    @pytest.mark.req("R5", "R22")
    async def test_re_entry_extends_a_fixed_lease(self, api: Api) -> None:
        """It promises a ttl from every acquire on."""
        lock = api.here.lock("x", ttl=2 * api.brief, renew=False, reentrant=True)
        outer = await take(lock)
        await api.pass_time(api.brief / 2)
        before = outer.remaining()
        inner = await take(lock)
        assert inner.remaining() > before
        assert outer.remaining() > before
        assert outer.held
        await inner.release()
        await outer.release()

    @pytest.mark.req("R5", "R1", "B2")
    async def test_a_lost_lease_is_not_entered_again(self, api: Api) -> None:
        api.need_inspection()
        lock = api.here.lock("x", renew=api.often, reentrant=True)
        lost = await take(lock)
        await api.there.evict("x")
        assert await lost.lost.wait(LONG) is True
        successor = await take(api.there.lock("x"))
        assert await refused(lock)
        await successor.release()
        anew = await take(lock)
        assert anew.held
        assert not lost.held
        if Mode.EXCLUSIVE in api.capabilities.fencing:
            assert anew.fence > lost.fence
        assert await lost.release() is False
        assert anew.held
        assert await refused(api.there.lock("x"))
        assert await anew.release() is True
        await api.free("x")

    @pytest.mark.req("R5", "R1", "event loop blocked")
    @only_on("aio")
    async def test_a_lease_that_ran_out_unnoticed_is_not_entered_again(self, api: Api) -> None:
        """The loop was blocked: nobody has been told yet, but the clock knows."""
        lock = api.here.lock("x", ttl=api.short, reentrant=True)
        lost = await take(lock)
        time.sleep(1.2 * api.short)  # noqa: ASYNC251 - this is the fault
        anew = await take(lock)
        assert not lost.held
        if Mode.EXCLUSIVE in api.capabilities.fencing:
            assert anew.fence > lost.fence
        await lost.release()
        await anew.release()
        await api.free("x")

    @pytest.mark.req("R5", "R22", "R1")
    async def test_a_fixed_lease_that_the_store_forgot_is_not_entered_again(self, api: Api) -> None:
        """Re-entry asks for an extension, and so learns of the loss."""
        lock = api.here.lock("x", renew=False, reentrant=True)
        lost = await take(lock)
        api.strategy.expire_now("x")
        anew = await take(lock)
        assert anew.held
        assert not lost.held
        with pytest.raises(LeaseLost):
            lost.check()
        await anew.release()
        await api.free("x")

    @pytest.mark.req("R5", "R12")
    async def test_a_detached_lease_belongs_to_whoever_has_it(self, api: Api) -> None:
        lock = api.here.lock("x", reentrant=True)
        lease = await take(lock)
        lease.detach()
        assert lease.held
        assert await refused(lock)  # this thread or task does not enter any more

        async def somebody_else() -> bool:
            assert await refused(lock)
            return await lease.release()

        assert await api.apart(somebody_else()) is True
        await api.free("x")

    @pytest.mark.req("R5", "R10")
    async def test_reading_and_writing_are_counted_apart(self, api: Api) -> None:
        api.need(Mode.SHARED)
        lock = api.here.rwlock("x", reentrant=True)
        async with lock.read(), lock.read():
            assert await refused(lock.write())  # an upgrade would wait for itself
            assert not await refused(api.there.rwlock("x").read())
        async with lock.write(), lock.write():
            assert await refused(api.there.rwlock("x").read())
        await api.free("x")
