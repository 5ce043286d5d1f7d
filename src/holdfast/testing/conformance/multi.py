"""Several locks as one (B5): all or none, in one order for everybody, and lost together."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from holdfast import (
    AcquireTimeout,
    LeaseLost,
    Misconfigured,
    Mode,
    NotHeld,
    Unavailable,
    Unsupported,
    aio,
)
from holdfast.testing.conformance.cancellation import STEPS, steps
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on, refused, take
from holdfast.testing.conformance.losses import Ear

NAMES = "abcdef"


class Multi(Theme):
    @pytest.mark.req("B5", "R12")
    async def test_a_multi_holds_all_of_its_names(self, api: Api) -> None:
        multi = api.here.multi("c", "a", "b", "a", metadata={"job": "move"})
        async with multi as lease:
            assert lease.names == multi.names == ("a", "b", "c")
            assert not lease.uncertain
            assert lease.remaining() > 0
            assert await lease.renew() > 0
            assert lease.mode is Mode.EXCLUSIVE
            lease.check()
            for name in lease.names:
                assert await refused(api.there.lock(name))
            if api.capabilities.inspection:
                assert await api.there.multi("x", "c").locked()
                for info in await api.here.inspect():
                    assert [holder.info["job"] for holder in info.holders] == ["move"]
        assert not lease.held
        assert lease.remaining() == 0
        with pytest.raises(NotHeld):
            lease.check()
        assert await lease.release() is True  # again: nothing
        for name in lease.names:
            assert not await refused(api.there.lock(name))

    @pytest.mark.req("B5", "B1")
    async def test_a_multi_has_a_token_for_each_name(self, api: Api) -> None:
        api.need_token()
        before = {name: await self._token(api, name) for name in ("a", "b")}
        lease = await take(api.here.multi("b", "a"))
        assert list(lease.fences) == ["a", "b"]
        await lease.release()
        for name, fence in lease.fences.items():
            assert before[name] < fence < await self._token(api, name)
        with pytest.raises(Unsupported):
            lease.txn_guard()

    @staticmethod
    async def _token(api: Api, name: str) -> int:
        async with api.there.lock(name) as lease:
            return lease.fence

    @pytest.mark.req("B5", "R7")
    async def test_a_multi_takes_all_or_none(self, api: Api) -> None:
        multi = api.here.multi("a", "b", "c")
        for name in ("a", "b", "c"):
            held = await take(api.there.lock(name))
            assert await multi.acquire(blocking=False) is None
            assert await multi.acquire(timeout=0) is None
            # So short a time may be over before a store on the other side of a network answers.
            with pytest.raises((AcquireTimeout, Unavailable)) as said:
                async with api.here.multi("a", "b", "c", timeout=0.1):
                    pass
            assert said.type is Unavailable or f"'{name}'" in str(said.value)
            for other in {"a", "b", "c"} - {name}:
                await api.free(other)
            assert held.held
            await held.release()
        assert not await refused(multi)

    @pytest.mark.req("B5", "R8")
    async def test_a_multi_waits_for_each(self, api: Api) -> None:
        """And keeps what it has meanwhile, as long as that takes."""
        locks = [await take(api.there.lock(name)) for name in ("a", "c")]
        multi = api.here.multi("c", "b", "a", ttl=api.brief, renew=False)
        waiting = api.spawn(multi.acquire(timeout=4 * LONG))
        await api.in_line("a", 1)
        assert not await refused(api.there.lock("b"))  # the first is waited for first
        await locks[0].release()
        await api.in_line("c", 1)  # some stores cannot tell one line from another, so:
        await api.until(lambda: refused(api.there.lock("a")), "it has the first")
        await api.pass_time(api.brief)
        assert await refused(api.there.lock("a"))
        assert await refused(api.there.lock("b"))
        await locks[1].release()
        lease = await waiting
        assert lease is not None
        assert lease.held
        assert lease.remaining() > api.brief / 2  # fixed: the whole ttl from now on, for each
        assert await lease.release() is True

    @pytest.mark.req("B5", "law 4")
    async def test_a_multi_that_gives_up_leaves_nothing(self, api: Api) -> None:
        held = await take(api.there.lock("b"))
        with contextlib.suppress(Unavailable):  # too short for a store that is far away
            assert await api.here.multi("a", "b", "c").acquire(timeout=0.2) is None
        await api.in_line("b", 0)
        await api.free("a")
        await api.free("c")
        await held.release()
        await api.free("b")

    @pytest.mark.req("B5", "R2")
    async def test_multis_that_overlap_do_not_block_one_another(self, api: Api) -> None:
        """Dozens of random sets, named in random order, by tasks of two clients."""
        holders = dict.fromkeys(NAMES, 0)
        rng = random.Random(7)

        async def worker(client: aio.Locks, sets: list[list[str]]) -> None:
            for names in sets:
                async with client.multi(*names, timeout=6 * LONG) as lease:
                    for name in names:
                        holders[name] += 1
                    assert all(holders[name] == 1 for name in names)
                    await asyncio.sleep(0)
                    assert all(holders[name] == 1 for name in names)
                    lease.check()
                    for name in names:
                        holders[name] -= 1

        def some() -> list[list[str]]:
            return [rng.sample(NAMES, rng.randint(2, 4)) for _ in range(6)]

        clients = (api.here, api.there)
        await asyncio.gather(*(api.spawn(worker(clients[n % 2], some())) for n in range(6)))
        assert not any(holders.values())

    @pytest.mark.req("B5", "B2", "R21")
    async def test_the_loss_of_one_is_the_loss_of_all(self, api: Api) -> None:
        api.need_inspection()
        for name in ("a", "c"):
            option, method = Ear(), Ear()
            multi = api.here.multi("a", "b", "c", renew=api.often, on_lost=option)
            lease = await take(multi)
            lease.on_lost(method)
            assert await api.there.evict(name) == 1
            assert await lease.lost.wait(LONG) is True
            assert not lease.held
            assert lease.remaining() == 0
            for ear in (option, method):
                assert f"{name!r}" in str(await ear.hears())
                assert len(ear.heard) == 1
            with pytest.raises(LeaseLost):
                lease.check()
            for other in ("a", "b", "c"):
                await api.free(other)
            assert await lease.release() is False

    @pytest.mark.req("B5", "R3")
    async def test_a_loss_is_noticed_at_the_release(self, api: Api) -> None:
        api.need_inspection()
        with pytest.raises(LeaseLost, match="'b'"):
            async with api.here.multi("a", "b"):
                assert await api.there.evict("b") == 1
        for name in ("a", "b"):
            await api.free(name)

    @pytest.mark.req("B5", "R6")
    async def test_a_fixed_multi_ends_by_itself(self, api: Api) -> None:
        lease = await take(api.here.multi("a", "b", ttl=api.short, renew=False))
        async with api.there.multi("b", "a", timeout=LONG):
            assert not lease.held
            assert lease.lost.is_set()
        assert await lease.release() is False

    @pytest.mark.req("B5", "B2")
    @only_on("aio")
    async def test_the_body_of_a_lost_multi_is_cancelled(self, api: Api) -> None:
        api.need_inspection()

        async def body() -> None:
            async with api.here.multi("a", "b", renew=api.often):
                await api.there.evict("b")
                await asyncio.sleep(LONG)
                pytest.fail("the body went on")

        with pytest.raises(LeaseLost):
            await body()
        await api.free("a")

    @pytest.mark.req("B5", "B3")
    async def test_the_lease_of_a_multi_may_be_passed_on(self, api: Api) -> None:
        multi = api.here.multi("a", "b")
        lease = await take(multi)

        async def elsewhere() -> bool:
            with pytest.raises(NotHeld):
                await multi.release()
            async with lease:
                return lease.held

        assert await api.apart(elsewhere())
        await api.free("a")
        await api.free("b")

    @pytest.mark.req("B5")
    async def test_what_a_multi_cannot_be(self, api: Api) -> None:
        with pytest.raises(Misconfigured, match="at least one name"):
            api.here.multi()
        with pytest.raises(Misconfigured, match="reentrant"):
            api.here.multi("a", "b", reentrant=True)
        with pytest.raises(Misconfigured, match="empty"):
            api.here.multi("a", "")
        with pytest.raises(Misconfigured, match="did you mean"):
            api.here.multi("a", tll=3)  # type: ignore[call-arg] # pyright: ignore

    @pytest.mark.req("B5", "asyncio cancellation at any await", "law 4")
    @only_on("aio")
    async def test_a_multi_is_cancelled_anywhere(self, api: Api) -> None:
        async def body() -> None:
            async with api.here.multi("a", "b"):
                await steps(2)

        for count in range(0, STEPS, 2):
            held = await take(api.there.lock("b")) if count % 4 else None
            task = api.spawn(body())
            await steps(count)
            task.cancel()
            if held is not None:
                await held.release()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for name in ("a", "b"):
                await api.free(name)
