"""One resource in segments (R11): the one of a key, whichever is free, and all of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest

from holdfast import AcquireTimeout, LeaseLost, Misconfigured, Unavailable, aio
from holdfast.testing.conformance.cancellation import STEPS, steps
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on, refused, take
from holdfast.testing.conformance.losses import Ear

COUNT = 4

KEYS: dict[str | bytes | int, int] = {"apple": 1, b"apple": 1, 77: 3, "77": 3, "": 0}
"""Which of four stripes they belong to. Another process, host or version must come to the same."""


class Striped(Theme):
    @pytest.mark.req("R11")
    async def test_a_key_belongs_to_one_stripe(self, api: Api) -> None:
        stripes = api.here.stripes("s", COUNT)
        assert {key: stripes.index(key) for key in KEYS} == KEYS
        async with stripes.of("apple") as lease:
            assert lease.name == f"s[{stripes.index('apple')}/{COUNT}]"
            assert await refused(api.there.stripes("s", COUNT).of(b"apple"))
            assert not await refused(api.there.stripes("s", COUNT).of(77))
            assert not await refused(api.there.stripes("t", COUNT).of("apple"))

    @pytest.mark.req("R11")
    async def test_any_takes_whichever_is_free(self, api: Api) -> None:
        leases = [await take(client.stripes("s", 2).any()) for client in (api.here, api.there)]
        assert {lease.stripe for lease in leases} == {0, 1}
        assert {lease.name for lease in leases} == {"s[0/2]", "s[1/2]"}
        full = api.there.stripes("s", 2).any()
        assert await full.acquire(blocking=False) is None
        if api.capabilities.inspection:
            assert await full.locked()
        # So short a time may be over before a store on the other side of a network answers.
        with pytest.raises((AcquireTimeout, Unavailable)):
            async with api.there.stripes("s", 2, timeout=0.1).any():
                pass
        await leases[0].release()
        async with full as again:
            assert again.stripe == leases[0].stripe
        await leases[1].release()
        for number in range(2):
            await api.in_line(f"s[{number}/2]", 0)

    @pytest.mark.req("R11", "R9")
    async def test_any_waits_for_whichever_is_free_first(self, api: Api) -> None:
        """Waiting in one line would miss the others."""
        for freed in range(COUNT):
            stripes = api.there.stripes("s", COUNT)
            leases = [await take(stripes.any()) for _ in range(COUNT)]
            waiting = api.spawn(api.here.stripes("s", COUNT).any().acquire(timeout=4 * LONG))
            await self._in_every_line(api)
            leases.sort(key=lambda lease: lease.stripe)
            await leases.pop(freed).release()
            got = await asyncio.wait_for(waiting, LONG)
            assert got is not None
            assert got.held
            assert got.stripe == freed
            await self._in_no_line(api)
            for lease in (*leases, got):
                assert await lease.release() is True

    @staticmethod
    async def _in_every_line(api: Api) -> None:
        """Until somebody is; where the store cannot tell of which, the test holds all the same."""

        async def somebody(name: str) -> bool:
            if not api.capabilities.inspection:
                return api.strategy.line(name) > 0
            return len(await api.waiters(name)) > 0

        for number in range(COUNT):
            name = f"s[{number}/{COUNT}]"
            await api.until(functools.partial(somebody, name), f"somebody in line for {name!r}")

    @staticmethod
    async def _in_no_line(api: Api) -> None:
        for number in range(COUNT):
            await api.in_line(f"s[{number}/{COUNT}]", 0)

    @pytest.mark.req("R11", "law 4")
    async def test_a_second_grant_is_given_back(self, api: Api) -> None:
        """All are freed at once: the waiter has one, and the others are free."""
        everything = await take(api.there.stripes("s", COUNT).all())
        waiting = api.spawn(api.here.stripes("s", COUNT).any().acquire(timeout=4 * LONG))
        await self._in_every_line(api)
        await everything.release()
        got = await asyncio.wait_for(waiting, LONG)
        assert got is not None
        for number in set(range(COUNT)) - {got.stripe}:
            await api.free(f"s[{number}/{COUNT}]")
        assert got.held
        await got.release()

    @pytest.mark.req("R11", "R1")
    async def test_a_crowd_shares_the_stripes(self, api: Api) -> None:
        inside: set[int] = set()

        async def worker(client: aio.Locks) -> None:
            stripes = client.stripes("s", 2)
            for _ in range(4):
                lease = await take(stripes.any(), timeout=6 * LONG)
                assert lease.stripe not in inside
                inside.add(lease.stripe)
                await asyncio.sleep(0)
                lease.check()
                inside.remove(lease.stripe)
                await lease.release()

        clients = (api.here, api.there)
        await asyncio.gather(*(api.spawn(worker(clients[n % 2])) for n in range(5)))

    @pytest.mark.req("R11")
    async def test_all_stripes_at_once(self, api: Api) -> None:
        stripes = api.here.stripes("s", COUNT)
        one = await take(api.there.stripes("s", COUNT).of("apple"))
        assert await stripes.all().acquire(blocking=False) is None
        waiting = api.spawn(stripes.all().acquire(timeout=LONG))
        await api.in_line(one.name, 1)
        await one.release()
        lease = await waiting
        assert lease is not None
        assert len(lease.names) == COUNT
        assert await api.there.stripes("s", COUNT).any().acquire(blocking=False) is None
        await lease.release()

    @pytest.mark.req("R11", "B2")
    async def test_the_loss_of_a_stripe_is_told(self, api: Api) -> None:
        api.need_inspection()
        ear = Ear()
        held = await take(api.there.stripes("s", 1).any())
        waiting = api.spawn(
            api.here.stripes("s", 1, renew=api.often, on_lost=ear).any().acquire(timeout=LONG)
        )
        await api.in_line("s[0/1]", 1)
        await held.release()
        lease = await waiting
        assert lease is not None
        assert await api.there.evict(lease.name) == 1
        assert (await ear.hears()).name == "s[0/1]"
        with pytest.raises(LeaseLost):
            lease.check()

    @pytest.mark.req("R11")
    async def test_what_stripes_cannot_be(self, api: Api) -> None:
        for count in (0, -1, 1.5, True, 2000):
            with pytest.raises(Misconfigured, match="stripes"):
                api.here.stripes("s", count)  # type: ignore[arg-type] # pyright: ignore
        with pytest.raises(Misconfigured, match="reentrant"):
            api.here.stripes("s", 2, reentrant=True)
        with pytest.raises(Misconfigured, match="key"):
            api.here.stripes("s", 2).of(1.5)  # type: ignore[arg-type] # pyright: ignore

    @pytest.mark.req("R11", "asyncio cancellation at any await", "law 4")
    @only_on("aio")
    async def test_any_is_cancelled_anywhere(self, api: Api) -> None:
        async def body() -> None:
            async with api.here.stripes("s", 2).any():
                await steps(2)

        for count in range(0, STEPS, 2):
            busy = [] if count % 4 else [await take(api.there.stripes("s", 2).any()) for _ in "ab"]
            task = api.spawn(body())
            await steps(count)
            if count % 8 == 0 and busy:
                await busy.pop().release()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for lease in busy:
                await lease.release()
            for number in range(2):
                await api.free(f"s[{number}/2]")
