"""To wait or not to wait, in order, and without a herd (R7, R8, R9)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Closed, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take

PROMPT = 5.0
"""Seconds within which a waiter that is told to stop must have stopped, however long its ttl."""


class Waiting(Theme):
    @pytest.mark.req("R7")
    async def test_a_try_answers_and_leaves_no_trace(self, api: Api) -> None:
        async with api.here.lock("x"):
            lock = api.there.lock("x")
            assert await lock.acquire(blocking=False) is None
            assert await lock.acquire(timeout=0) is None
            assert await api.there.lock("x", timeout=0).acquire() is None
            if api.capabilities.inspection:
                assert not await api.waiters("x")
        await api.free("x")

    @pytest.mark.req("R7")
    async def test_a_wait_has_its_limit_and_leaves_no_trace(self, api: Api) -> None:
        async with api.here.lock("x"):
            assert await refused(api.there.lock("x"))  # logs in, which may take longer than a wait
            begun, limit = api.now(), api.patience
            assert await api.there.lock("x").acquire(timeout=limit) is None
            assert api.now() - begun >= limit
            begun = api.now()
            assert await api.there.lock("x", timeout=limit).acquire() is None
            assert limit <= api.now() - begun < limit + LONG
            if api.capabilities.inspection:
                await api.in_line("x", 0)  # if the store is slow to answer, the keeper sees to it
        await api.free("x")

    @pytest.mark.req("R7", "R9")
    async def test_a_release_hands_over(self, api: Api) -> None:
        lease = await take(api.here.lock("x"))
        waiter = await api.queue_up(api.there.lock("x"))
        assert not waiter.done()
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        assert handed_over.held
        assert await refused(api.here.lock("x"))
        assert await handed_over.release() is True
        await api.free("x")

    @pytest.mark.req("R7", "R9")
    async def test_no_wake_up_is_lost(self, api: Api) -> None:
        """Two clients hand a lock to and fro; one lost call and the other waits for its ttl."""

        async def player(client: aio.Locks) -> None:
            lock = client.lock("x", ttl=10 * LONG)
            for _ in range(40):
                lease = await take(lock)
                await lease.release()

        await asyncio.gather(api.spawn(player(api.here)), api.spawn(player(api.there)))

    @pytest.mark.req("R8")
    async def test_first_come_first_served(self, api: Api) -> None:
        """Zero overtakes among waiters whose place the store has acknowledged."""
        api.need_order()
        served: list[int] = []

        async def turn(number: int) -> None:
            client = (api.here, api.there)[number % 2]
            async with client.lock("x", timeout=LONG):
                served.append(number)

        lease = await take(api.here.lock("x"))
        turns: list[asyncio.Task[None]] = []
        for number in range(6):
            turns.append(api.spawn(turn(number)))
            await api.in_line("x", number + 1)
        await lease.release()
        await asyncio.gather(*turns)
        assert served == list(range(6))

    @pytest.mark.req("R8")
    async def test_the_one_who_releases_goes_to_the_end(self, api: Api) -> None:
        api.need_order()
        lock = api.here.lock("x")
        lease = await take(lock)
        first = await api.queue_up(api.there.lock("x"))
        await lease.release()
        again = api.spawn(lock.acquire(timeout=LONG))  # asks after the other did
        handed_over = await first
        assert handed_over is not None
        assert await refused(lock)
        assert not again.done()
        await handed_over.release()
        lease_again = await again
        assert lease_again is not None
        await lease_again.release()

    @pytest.mark.req("R8")
    async def test_unfair_waiters_are_served_all(self, api: Api) -> None:
        """fair=False permits overtaking and requires nothing but exclusion and progress."""
        served = 0
        inside = 0

        async def turn(number: int) -> None:
            nonlocal served, inside
            client = (api.here, api.there)[number % 2]
            async with client.lock("x", fair=False, timeout=LONG):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1
                served += 1

        lease = await take(api.here.lock("x", fair=False))
        turns = [api.spawn(turn(number)) for number in range(6)]
        await asyncio.sleep(0.05)
        await lease.release()
        await asyncio.gather(*turns)
        assert served == 6

    @pytest.mark.req("R8", "waiter withdrawn")
    async def test_who_gives_up_is_skipped(self, api: Api) -> None:
        lease = await take(api.here.lock("x"))
        assert await refused(api.there.lock("x"))  # logs in, which may take longer than the wait
        gives_up = await api.queue_up(api.there.lock("x"), timeout=api.patience)
        stays = await api.queue_up(api.here.lock("x"))
        assert await gives_up is None
        await api.in_line("x", 1)
        assert not stays.done()
        await lease.release()
        handed_over = await stays
        assert handed_over is not None
        await handed_over.release()
        await api.free("x")

    @pytest.mark.req("R8", "waiter withdrawn")
    async def test_a_client_that_closes_leaves_the_line(self, api: Api) -> None:
        client = api.connect()
        lease = await take(api.here.lock("x"))
        gone = await api.queue_up(client.lock("x"))
        stays = await api.queue_up(api.there.lock("x"))
        await client.close()
        with pytest.raises(Closed):
            await asyncio.wait_for(gone, PROMPT)
        await api.in_line("x", 1)
        await lease.release()
        handed_over = await stays
        assert handed_over is not None
        await handed_over.release()

    @pytest.mark.req("R2", "R6", "key expires while waiters queue")
    async def test_a_lease_that_ends_by_itself_is_handed_over(self, api: Api) -> None:
        """Nobody releases, so nobody else wakes the first waiter."""
        lease = await take(api.here.lock("x", ttl=api.short, renew=False))
        waiter = api.spawn(api.there.lock("x").acquire(timeout=LONG))
        handed_over = await waiter
        assert handed_over is not None
        assert not lease.held
        assert await lease.release() is False
        assert handed_over.held
        assert await refused(api.here.lock("x"))
        await handed_over.release()

    @pytest.mark.req("R2", "several dead waiters in a row", "waiter killed")
    async def test_dead_waiters_are_passed_over(self, api: Api) -> None:
        """Three waiters die in line: each of them may cost a lease, and nobody is stuck."""
        raw = api.raw()
        lease = await take(api.here.lock("x"))
        for _ in range(3):
            await raw.queue(raw.claim("x", ttl=api.short))
        waiter = await api.queue_up(api.there.lock("x", ttl=api.brief))
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        await handed_over.release()
        await api.free("x")

    @pytest.mark.req("R2", "waiter killed at the moment it is granted")
    async def test_a_waiter_that_dies_when_it_is_called(self, api: Api) -> None:
        raw = api.raw()
        lease = await take(api.here.lock("x"))
        await raw.queue(raw.claim("x", ttl=api.short))
        await lease.release()  # the store gives it to the dead one
        handed_over = await take(api.there.lock("x", ttl=api.brief))
        await handed_over.release()

    @pytest.mark.req("R2", "R8")
    async def test_a_waiter_keeps_its_place_for_longer_than_its_ttl(self, api: Api) -> None:
        api.need_order()
        lease = await take(api.here.lock("x"))
        first = await api.queue_up(api.there.lock("x", ttl=api.brief))
        second = await api.queue_up(api.connect().lock("x"))
        await api.pass_time(1.3 * api.brief)
        assert len(await api.waiters("x")) == 2
        await lease.release()
        handed_over = await first
        assert handed_over is not None
        assert not second.done()
        await handed_over.release()
        last = await second
        assert last is not None
        await last.release()

    @pytest.mark.req("R9")
    async def test_a_release_wakes_one_and_not_the_herd(self, api: Api) -> None:
        crowd = 24  # so many that what else is asked meanwhile, heartbeats, is less
        api.strategy.requests()
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        turns = [
            await api.queue_up((api.here, api.there)[n % 2].lock("x", ttl=10 * LONG))
            for n in range(crowd)
        ]
        before = api.strategy.requests()
        await lease.release()
        done, waiting = await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.1)
        cost = api.strategy.requests() - before
        assert len(done) == 1
        assert cost < crowd, f"a hand-over cost {cost} requests with {crowd} in line"
        (handed_over,) = done
        while handed_over:
            held = await handed_over
            assert held is not None
            await held.release()
            if not waiting:
                break
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (handed_over,) = done

    @pytest.mark.req("R9")
    async def test_waiting_costs_nothing(self, api: Api) -> None:
        """A line is not polled: beside rare heartbeats, waiters are silent."""
        crowd = 24  # as above
        api.strategy.requests()
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        turns = [await api.queue_up(api.there.lock("x", ttl=10 * LONG)) for _ in range(crowd)]
        before = api.strategy.requests()
        await asyncio.sleep(0.3)
        assert api.strategy.requests() - before < crowd
        await api.there.close()
        await lease.release()
        done, waiting = await asyncio.wait(turns, timeout=PROMPT)
        assert not waiting, "closing the client did not wake those who waited"
        assert all(isinstance(turn.exception(), Closed) for turn in done)
