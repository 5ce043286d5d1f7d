"""The way to the store breaks, or the store does (faults.md): told, cleaned up, never stuck.

Where a reply is lost, two outcomes are right: the client asked again and recognised its own lock,
or it said `Unavailable` and withdrew. A lock that its own client waits for is neither.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast import LeaseLost, Unavailable, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.testing.conformance.losses import Ear


async def impatient(api: Api) -> aio.Locks:
    """A client that gives up soon, and whose connections have been used."""
    client = api.connect(request_timeout=api.patience)
    for last in (False, False, True):
        try:
            async with client.lock("warm up") as lease:
                await lease.renew()
            break
        except Unavailable:  # a busy machine takes longer than that to connect
            if last:
                raise
    return client


async def is_busy(api: Api, lock: aio.Lock) -> bool:
    for _ in range(2):
        try:
            return await lock.acquire(timeout=api.patience) is None
        except Unavailable:  # as above
            pass
    return await lock.acquire(timeout=api.patience) is None


class Faults(Theme):
    # -- replies are lost -------------------------------------------------------------------------

    @pytest.mark.req("reply lost, command applied", "R32", "R2")
    @pytest.mark.parametrize("blocking", [False, True])
    async def test_the_reply_to_an_acquire_is_lost(self, api: Api, blocking: bool) -> None:
        client = await impatient(api)
        api.strategy.drop_next_reply()
        lock = client.lock("x")
        try:
            lease = await (lock.acquire(timeout=LONG) if blocking else lock.acquire(blocking=False))
        except Unavailable:
            lease = None
        else:
            assert lease is not None, "its own lock was in its way"
            assert lease.held
            assert await refused(api.there.lock("x"))
            assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("reply lost, command applied", "R32", "R8")
    async def test_the_reply_to_a_waiter_is_lost(self, api: Api) -> None:
        """It stands in line once, and is served once."""
        client = await impatient(api)
        lease = await take(api.there.lock("x"))
        api.strategy.drop_next_reply()
        waiter = api.spawn(client.lock("x").acquire(timeout=LONG))
        await asyncio.wait([waiter], timeout=2 * api.patience)
        if not waiter.done() and api.capabilities.inspection:
            assert len(await api.waiters("x")) == 1
        await lease.release()
        try:
            handed_over = await waiter
        except Unavailable:
            pass
        else:
            assert handed_over is not None
            assert await refused(api.there.lock("x"))
            assert await handed_over.release() is True
        await api.free("x")

    @pytest.mark.req("reply lost, command applied", "R3")
    async def test_the_reply_to_a_release_is_lost(self, api: Api) -> None:
        client = await impatient(api)
        lease = await take(client.lock("x"))
        waiter = await api.queue_up(api.there.lock("x"))
        api.strategy.drop_next_reply()
        await lease.release()
        assert not lease.held
        handed_over = await waiter
        assert handed_over is not None
        await api.pass_time(api.patience)  # whatever is repeated now must not touch the successor
        assert await refused(client.lock("x"))
        assert await handed_over.release() is True
        await api.free("x")

    @pytest.mark.req("reply lost, command applied", "R21")
    async def test_the_reply_to_a_renewal_is_lost(self, api: Api) -> None:
        api.need_lasting_leases()
        client = await impatient(api)
        lease = await take(client.lock("x"))
        api.strategy.drop_next_reply()
        try:
            await lease.renew()
        except Unavailable:
            pass
        assert lease.held
        lease.check()
        await lease.renew()
        assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("reply lost, command applied", "R20", "R21")
    async def test_the_reply_to_an_automatic_renewal_is_lost(self, api: Api) -> None:
        api.need_lasting_leases()
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=api.brief))
        api.strategy.drop_next_reply()  # the next request is the keeper's
        await api.pass_time(1.3 * api.brief)
        assert lease.held
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True

    @pytest.mark.req("reply lost, command applied", "waiter withdrawn")
    async def test_the_reply_to_a_withdrawal_is_lost(self, api: Api) -> None:
        client = await impatient(api)
        lease = await take(api.there.lock("x"))
        waiter = await api.queue_up(client.lock("x"), timeout=api.patience)
        api.strategy.drop_next_reply()
        assert await waiter is None
        await api.in_line("x", 0)
        await lease.release()
        await api.free("x")

    # -- the way is cut ---------------------------------------------------------------------------

    @pytest.mark.req("R7", "RST mid-command")
    async def test_busy_and_unavailable_are_never_confused(self, api: Api) -> None:
        client = await impatient(api)
        held = await take(api.there.lock("busy"))
        assert await is_busy(api, client.lock("busy"))
        api.strategy.sever_connections()
        for name in ("busy", "free"):
            with pytest.raises(Unavailable):
                await client.lock(name).acquire(timeout=0.1)
        with pytest.raises(Unavailable):
            await client.lock("busy").acquire(blocking=False)
        with pytest.raises(Unavailable):
            async with client.lock("busy"):
                pytest.fail("nobody granted this")
        if api.capabilities.inspection:
            with pytest.raises(Unavailable):
                await client.inspect()
        api.strategy.heal()
        if api.capabilities.crash_release != "connection":  # else it was lost with everything
            assert await is_busy(api, client.lock("busy"))  # it logs in again
        await (await take(client.lock("free"))).release()
        await held.release()

    @pytest.mark.req("R21")
    async def test_a_lease_survives_a_short_cut(self, api: Api) -> None:
        """A failed renewal is tried again in time."""
        api.need_lasting_leases()
        client = await impatient(api)
        ttl = 1.5 * api.brief
        lease = await take(client.lock("x", ttl=ttl, renew=ttl / 8))
        api.strategy.sever_connections()
        await api.pass_time(ttl / 4)
        assert lease.held
        api.strategy.heal()
        await api.pass_time(ttl)  # it would be over by now, had the cut ended its renewal
        assert lease.held
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True

    @pytest.mark.req("R21", "B2", "one-way partition")
    async def test_a_lease_is_lost_by_its_local_deadline(self, api: Api) -> None:
        ear = Ear()
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=2 * api.short, on_lost=ear))
        api.strategy.sever_connections()
        assert (await ear.hears()).name == "x"
        assert not lease.held
        assert lease.lost.is_set()
        with pytest.raises(LeaseLost):
            lease.check()
        assert await lease.release() is False
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("R21", "R2")
    async def test_a_waiter_is_told_that_the_store_is_away(self, api: Api) -> None:
        api.need_lasting_leases()  # else the holder is cut off first, perhaps, and hands over
        client = await impatient(api)
        lease = await take(api.there.lock("x"))
        waiter = await api.queue_up(client.lock("x", ttl=api.brief))
        api.strategy.sever_connections()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(waiter, LONG)
        api.strategy.heal()
        await api.in_line("x", 0)
        await lease.release()
        await api.free("x")

    @pytest.mark.req("R8", "R9")
    async def test_a_waiter_survives_a_short_cut(self, api: Api) -> None:
        """The call that it was granted may have been lost: it looks by itself."""
        api.need_lasting_leases()
        patient = api.connect(request_timeout=LONG)
        raw = api.raw()
        await raw.grant(raw.claim("x", ttl=2 * api.short))
        waiter = await api.queue_up(patient.lock("x", ttl=api.brief))
        api.strategy.sever_connections()
        await api.pass_time(2.2 * api.short)  # the holder's time runs out meanwhile
        api.strategy.heal()
        handed_over = await waiter
        assert handed_over is not None
        assert handed_over.held
        await handed_over.release()

    # -- silence ----------------------------------------------------------------------------------

    @pytest.mark.req("R7", "server hangs")
    async def test_a_time_limit_holds_although_the_store_hangs(self, api: Api) -> None:
        """And it is not called busy."""
        client = api.connect(request_timeout=2 * LONG)  # the limit is the caller's own
        await (await take(client.lock("warm up"))).release()
        api.strategy.hang()
        begun = api.now()
        with pytest.raises(Unavailable):
            await client.lock("x").acquire(timeout=0.5)
        assert 0.5 <= api.now() - begun < LONG
        begun = api.now()
        with pytest.raises(Unavailable):
            async with client.lock("x", timeout=0.2):
                pytest.fail("nobody granted this")
        assert api.now() - begun < LONG
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("R7", "server hangs")
    async def test_without_a_time_limit_the_clients_patience_decides(self, api: Api) -> None:
        client = await impatient(api)
        api.strategy.hang()
        begun = api.now()
        with pytest.raises(Unavailable):
            await client.lock("x").acquire()
        with pytest.raises(Unavailable):
            await client.lock("x").acquire(blocking=False)
        assert api.now() - begun < 2 * LONG
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("R21", "B2", "server hangs", "one-way partition")
    async def test_a_lease_is_lost_although_every_connection_hangs(self, api: Api) -> None:
        ear = Ear()
        client = api.connect(request_timeout=3 * LONG)  # so long for an answer; not the lease
        lease = await take(client.lock("x", ttl=2 * api.short, on_lost=ear))
        begun = api.now()
        api.strategy.hang()
        assert await lease.lost.wait(LONG) is True
        await ear.hears()
        assert not lease.held
        assert api.now() - begun < 2 * api.short + LONG
        assert await lease.release() is False
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("R2", "server hangs")
    async def test_release_does_not_fail_because_nobody_answers(self, api: Api) -> None:
        """The keeper goes on trying, so others do not wait for the ttl."""
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=10 * LONG))
        api.strategy.hang()
        begun = api.now()
        assert await lease.release() is True
        assert not lease.held
        assert api.now() - begun < LONG
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("R21", "server hangs", "interpreter exits holding a lock")
    async def test_close_does_not_hang(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("sync", "aio"):
            monkeypatch.setattr(f"holdfast.{module}.PATIENCE", api.patience)
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=api.brief))
        api.strategy.hang()
        begun = api.now()
        await client.close()
        assert api.now() - begun < 2 * LONG
        assert not lease.held
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("lease shorter than the round trip", "R6")
    async def test_a_lease_shorter_than_the_round_trip(self, api: Api) -> None:
        """Over before it arrives: acquire fails, says why, and cleans up."""
        client = api.connect()
        await (await take(client.lock("warm up"))).release()
        api.strategy.delay_requests(1.2 * api.short)
        with pytest.raises(Unavailable, match="too short"):
            await client.lock("x", ttl=api.short).acquire(timeout=LONG)
        api.strategy.heal()
        await api.free("x")

    # -- the store itself -------------------------------------------------------------------------

    @pytest.mark.req("R21", "R2", "server paused")
    async def test_a_pause_of_the_store_longer_than_the_lease(self, api: Api) -> None:
        """Late answers bring nothing back, and late requests take nothing."""
        client = await impatient(api)
        lease = await take(client.lock("x", ttl=2 * api.short))
        api.strategy.pause_server()
        with pytest.raises(Unavailable):
            await client.lock("y").acquire(timeout=api.patience)
        assert await lease.lost.wait(LONG) is True
        assert not lease.held
        api.strategy.resume_server()
        assert not lease.held
        await api.free("x")
        await api.free("y")
        assert not lease.held

    @pytest.mark.req("R2", "R4", "server restarted without persistence")
    async def test_a_restart_of_the_store_is_survived(self, api: Api) -> None:
        """The lease is still held or it is lost, and says which; the client goes on."""
        client = api.connect(request_timeout=LONG)
        lease = await take(client.lock("x", ttl=api.brief))
        waiter = await api.queue_up(client.lock("x", ttl=api.brief))
        api.strategy.restart_server()
        try:
            await lease.renew()
        except LeaseLost:
            assert not lease.held
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        assert handed_over.held
        await handed_over.release()
        await api.free("x")
