"""How long a lease lasts: fixed or renewed, and never anybody else's (R2, R3, R6, R20 to R22)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import LeaseLost
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take


class Leases(Theme):
    @pytest.mark.req("R6", "R22", "R2")
    async def test_a_fixed_lease_ends_by_itself(self, api: Api) -> None:
        begun = api.now()
        lease = await take(api.here.lock("x", ttl=api.short, renew=False))
        assert lease.remaining() <= api.short
        assert await refused(api.there.lock("x")) or api.now() - begun >= api.short
        assert await lease.lost.wait(LONG) is True
        assert api.now() - begun >= 0.9 * api.short  # not before its time
        assert not lease.held
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert await lease.release() is False
        await api.free("x")

    @pytest.mark.req("R6", "R22")
    async def test_the_store_keeps_a_lease_as_long_as_its_holder_believes_in_it(
        self, api: Api
    ) -> None:
        """The next grant comes after the holder stopped believing, never before."""
        for _ in range(3):
            lease = await take(api.here.lock("x", ttl=api.short, renew=False))
            handed_over = await take(api.there.lock("x"))
            assert not lease.held
            await handed_over.release()

    @pytest.mark.req("R22")
    async def test_a_fixed_lease_is_extended_by_hand(self, api: Api) -> None:
        begun = api.now()
        lease = await take(api.here.lock("x", ttl=api.brief, renew=False))
        while api.now() < begun + 1.2 * api.brief:
            await api.pass_time(api.brief / 4)
            before = lease.remaining()
            assert await lease.renew() > before
        assert lease.held
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True

    @pytest.mark.req("R20", "R21")
    async def test_a_lease_is_renewed_while_it_is_held(self, api: Api) -> None:
        """Default: a third of the ttl. A waiter behind it gets nothing, for as long as it lasts."""
        lease = await take(api.here.lock("x", ttl=api.brief))
        often = await take(api.here.lock("y", ttl=api.brief, renew=api.brief / 8))
        first = await take(api.there.lock("z"))
        handed_over = api.spawn(api.here.lock("z", ttl=api.brief).acquire(timeout=LONG))
        await first.release()
        third = await handed_over
        assert third is not None
        waiter = api.spawn(api.there.lock("x").acquire(timeout=LONG))
        await api.pass_time(1.2 * api.brief)
        assert lease.held
        assert often.held
        assert third.held
        assert not waiter.done()
        assert await refused(api.there.lock("y"))
        assert await refused(api.there.lock("z"))
        assert await third.release() is True
        assert await often.release() is True
        assert await lease.release() is True
        last = await waiter
        assert last is not None
        await last.release()

    @pytest.mark.req("R22", "hand-over with renew=False")
    @pytest.mark.parametrize("kind", ["lock", "multi"])
    async def test_a_fixed_lease_that_was_handed_over_lasts_its_ttl(
        self, api: Api, kind: str
    ) -> None:
        """Its ttl, not the claim window: the waiter must have confirmed it."""
        ttl = max(api.brief, 3 * api.strategy.claim_window)
        make: Any = getattr(api.there, kind)  # a multi of one name, too
        first = await take(api.here.lock("x"))
        waiter = await api.queue_up(make("x", ttl=ttl, renew=False))
        await first.release()
        lease = await waiter
        assert lease is not None
        await api.pass_time(0.5 * ttl)
        assert lease.held
        assert await refused(api.here.lock("x"))
        assert await lease.lost.wait(LONG) is True  # and no longer than its ttl
        await api.free("x")

    @pytest.mark.req("R21")
    async def test_renewal_stops_with_the_lease(self, api: Api) -> None:
        api.strategy.requests()
        lock = api.here.lock("x", ttl=api.short)
        await (await take(lock)).release()
        # After what is tidied up behind it nothing comes, not even every third of the ttl.
        await api.quiet(2 * api.short)
        await api.free("x")

    @pytest.mark.req("R20", "thousands of renewals due at once")
    async def test_many_leases_are_renewed_in_batches(self, api: Api) -> None:
        api.need_lasting_leases()
        api.strategy.requests()
        ttl, often = 3 * api.brief, api.brief / 3
        leases = [await take(api.here.lock(f"x{n}", ttl=ttl, renew=often)) for n in range(100)]
        before = api.strategy.requests()
        await api.pass_time(1.2 * api.brief)
        cost = api.strategy.requests() - before
        assert all(lease.held for lease in leases)
        assert cost < 100, f"{cost} requests for about three renewals of 100 leases"
        for lease in leases:
            await lease.release()

    @pytest.mark.req("R2", "R6", "holder killed -9")
    async def test_a_holder_that_died_blocks_nobody_for_longer_than_its_lease(
        self, api: Api
    ) -> None:
        """It is not there to renew, to release or to notice."""
        raw = api.raw()
        await raw.grant(raw.claim("x", ttl=api.short))
        await (await take(api.here.lock("x"))).release()

    @pytest.mark.req("R3", "R6")
    async def test_an_expired_holder_cannot_touch_its_successor(self, api: Api) -> None:
        lease = await take(api.here.lock("x", ttl=api.short, renew=False))
        successor = await take(api.there.lock("x"))
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert await lease.release() is False
        assert await lease.release() is False
        assert successor.held
        assert await successor.renew() > 0
        assert await refused(api.here.lock("x"))
        assert await successor.release() is True

    @pytest.mark.req("R3", "B2")
    async def test_a_holder_that_the_store_forgot_cannot_touch_its_successor(
        self, api: Api
    ) -> None:
        """The store ended it while it still believes: what decides is in the store."""
        lease = await take(api.here.lock("x"))
        api.strategy.expire_now("x")
        successor = await take(api.there.lock("x"))
        assert await lease.release() is False
        assert lease.lost.is_set()
        assert successor.held
        assert await refused(api.here.lock("x"))
        assert await successor.release() is True

    @pytest.mark.req("R3", "R20")
    async def test_renewal_brings_nothing_back(self, api: Api) -> None:
        """Expired in the store, and nobody has taken it since: still it is not renewed."""
        lease = await take(api.here.lock("x"))
        api.strategy.expire_now("x")
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert not lease.held
        await api.free("x")

    @pytest.mark.req("R6", "client wall clock +-1 h")
    @pytest.mark.parametrize("hours", [-1, 1])
    async def test_the_wall_clock_of_the_client_decides_nothing(
        self, api: Api, hours: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = await take(api.here.lock("x"))
        _set_wall_clock(monkeypatch, hours * 3600)
        assert lease.held
        assert 20 < lease.remaining() <= 30
        await lease.renew()
        assert 20 < lease.remaining() <= 30
        assert await refused(api.connect().lock("x"))
        assert await lease.release() is True
        short = await take(api.here.lock("y", ttl=api.short, renew=False))
        assert short.remaining() <= api.short
        await (await take(api.there.lock("y"))).release()
        assert not short.held
        assert await short.release() is False

    @pytest.mark.req("R12", "R6")
    async def test_remaining_counts_down(self, api: Api) -> None:
        lease = await take(api.here.lock("x", renew=False))
        first = lease.remaining()
        await asyncio.sleep(0.01)
        assert 0 < lease.remaining() < first <= 30
        await lease.release()


def _set_wall_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real: Callable[[], float] = time.time
    real_ns: Callable[[], int] = time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(seconds * 1e9))
