"""No ghosts (law 3): a request that arrives after its claim was given up changes nothing.

Each lease here would last longer than a test waits, so a ghost that holds or queues is found.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Closed, LeaseLost, NotHeld, Unavailable
from holdfast.testing.conformance.faults import impatient
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on, refused, take

TTL = 10 * LONG


def late(api: Api) -> float:
    """So much later than its sender's patience a ghost arrives."""
    return 1.5 * api.patience


async def past(api: Api, begun: float) -> None:
    """Until what was sent after `begun`, and is late, has arrived."""
    await api.pass_time(begun + late(api) + 0.1 - api.now())


class Ghosts(Theme):
    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
    async def test_an_attempt_arrives_after_its_timeout(self, api: Api) -> None:
        client = await impatient(api)
        api.strategy.delay_next_request(late(api))
        begun = api.now()
        with pytest.raises(Unavailable):
            await client.lock("x", ttl=TTL).acquire(timeout=api.patience / 4)
        await past(api, begun)
        await api.free("x")

    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
    async def test_an_attempt_arrives_after_its_client_has_closed(self, api: Api) -> None:
        client = await impatient(api)
        api.strategy.delay_next_request(late(api))
        begun = api.now()
        attempt = api.spawn(client.lock("x", ttl=TTL).acquire(timeout=LONG))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises((Closed, Unavailable)):
            await asyncio.wait_for(attempt, LONG)
        await past(api, begun)
        await api.free("x")

    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn", "B3")
    @only_on("aio")
    async def test_an_attempt_arrives_after_it_was_cancelled(self, api: Api) -> None:
        client = await impatient(api)
        api.strategy.delay_next_request(late(api))
        begun = api.now()
        attempt = api.spawn(client.lock("x", ttl=TTL).acquire())
        await asyncio.sleep(0.05)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await past(api, begun)
        await api.free("x")

    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
    async def test_a_waiter_joins_the_line_after_its_timeout(self, api: Api) -> None:
        """It would stand there without heartbeats, in front of everybody."""
        api.need_inspection()
        client = await impatient(api)
        holder = await take(api.there.lock("x", ttl=TTL))
        api.strategy.delay_next_request(late(api))
        begun = api.now()
        with pytest.raises(Unavailable):
            await client.lock("x", ttl=TTL).acquire(timeout=api.patience / 4)
        await past(api, begun)
        assert not await api.waiters("x")
        assert await holder.release() is True
        await api.free("x")

    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
    async def test_a_whole_conversation_arrives_late(self, api: Api) -> None:
        """Attempt, withdrawal and what else was sent meanwhile, in their order."""
        client = await impatient(api)
        api.strategy.hold_requests()
        with pytest.raises(Unavailable):
            await client.lock("x", ttl=TTL).acquire(timeout=api.patience / 4)
        with pytest.raises(Unavailable):
            await client.lock("x", ttl=TTL).acquire(blocking=False)
        api.strategy.release_requests()
        await api.free("x")

    @pytest.mark.req("law 3", "R3")
    async def test_a_release_arrives_late(self, api: Api) -> None:
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=TTL))
        api.strategy.delay_next_request(late(api))
        begun = api.now()
        await lease.release()
        assert not lease.held
        successor = await take(api.there.lock("x", ttl=TTL))
        await past(api, begun)
        assert await successor.renew() > 0
        assert await refused(client.lock("x"))
        assert await successor.release() is True
        await api.free("x")

    @pytest.mark.req("law 3", "R3", "R20")
    async def test_a_renewal_arrives_after_the_release(self, api: Api) -> None:
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=TTL))
        api.strategy.delay_next_request(late(api))
        begun = api.now()
        renewal = api.spawn(lease.renew())
        await asyncio.sleep(0.05)
        assert await lease.release() is True
        with pytest.raises((Unavailable, LeaseLost, NotHeld)):
            await renewal
        assert not lease.held
        await past(api, begun)
        await api.free("x")

    @pytest.mark.req("law 3", "R6")
    async def test_a_holder_that_comes_back_late_takes_nothing(self, api: Api) -> None:
        """Its attempt is answered, lost on the way and over: it must not stand in its own way."""
        client = await impatient(api)
        api.strategy.delay_next_request(late(api))
        try:
            lease = await client.lock("x", ttl=TTL).acquire(timeout=LONG)
        except Unavailable:
            pass
        else:
            assert lease is not None
            assert lease.held
            assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("law 3", "R2")
    async def test_everything_ends_in_time(self, api: Api) -> None:
        """After quiescence and a lease: no key, no queue entry and no tombstone."""
        api.strategy.leftovers()
        client = api.connect(request_timeout=api.patience)
        for n in range(3):
            lease = await take(client.lock(f"x{n}", ttl=api.brief))  # renewed in time
            other = api.there.lock(f"x{n}", ttl=api.short)
            assert await other.acquire(timeout=api.patience) is None
            waiter = api.spawn(api.there.lock(f"x{n}", ttl=api.short).acquire(timeout=LONG))
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()
        raw = api.raw()
        grant = await raw.grant(raw.claim("y", ttl=api.brief))
        await raw.queue(raw.claim("y", ttl=api.short))
        await raw.release(grant, tombstone=True)
        await client.close()

        async def nothing() -> bool:
            return api.strategy.leftovers() == []

        try:
            await api.until(nothing, "everything in the store has ended")
        except AssertionError:
            assert api.strategy.leftovers() == []
            raise
