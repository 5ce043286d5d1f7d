"""Readers and writers, and permits (R10, and the semaphore of B5): one queue, one rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast import Mode, Unsupported, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take


class Modes(Theme):
    @pytest.mark.req("R10")
    async def test_every_mode_works_or_is_refused_by_name(self, api: Api) -> None:
        made: dict[Mode, Callable[[], aio.Lock | aio.Semaphore]] = {
            Mode.EXCLUSIVE: lambda: api.here.lock("x"),
            Mode.SHARED: lambda: api.here.rwlock("x").read(),
            Mode.PERMITS: lambda: api.here.semaphore("x", 2),
        }
        assert api.capabilities.modes, "a backend must be able to do something"
        for mode, make in made.items():
            if mode in api.capabilities.modes:
                lease = await make().acquire(timeout=LONG)
                assert lease is not None
                assert lease.mode is mode
                await lease.release()
            else:
                with pytest.raises(Unsupported):
                    make()

    @pytest.mark.req("R10")
    async def test_readers_share(self, api: Api) -> None:
        api.need(Mode.SHARED)
        readers = [await take(client.rwlock("x").read()) for client in (api.here, api.there) * 2]
        assert all(reader.held for reader in readers)
        assert all(reader.mode is Mode.SHARED for reader in readers)
        assert await refused(api.there.rwlock("x").write())
        for reader in readers:
            await reader.release()
        assert not await refused(api.there.rwlock("x").write())

    @pytest.mark.req("R10")
    async def test_a_writer_is_alone(self, api: Api) -> None:
        api.need(Mode.SHARED)
        writer = await take(api.here.rwlock("x").write())
        assert writer.mode is Mode.EXCLUSIVE
        assert await refused(api.there.rwlock("x").read())
        assert await refused(api.there.rwlock("x").write())
        assert await refused(api.here.rwlock("x").read())
        await writer.release()
        assert not await refused(api.there.rwlock("x").read())

    @pytest.mark.req("R10")
    async def test_a_plain_lock_is_a_writer(self, api: Api) -> None:
        api.need(Mode.SHARED)
        async with api.here.lock("x"):
            assert await refused(api.there.rwlock("x").read())
        async with api.here.rwlock("x").read():
            assert await refused(api.there.lock("x"))

    @pytest.mark.req("R10", "R8")
    async def test_a_writer_waits_for_every_reader(self, api: Api) -> None:
        api.need(Mode.SHARED)
        one = await take(api.here.rwlock("x").read())
        two = await take(api.there.rwlock("x").read())
        writer = await api.queue_up(api.there.rwlock("x").write())
        await one.release()
        await asyncio.sleep(0.02)
        assert not writer.done()
        await two.release()
        written = await writer
        assert written is not None
        await written.release()

    @pytest.mark.req("R10", "R8")
    async def test_readers_do_not_overtake_a_writer(self, api: Api) -> None:
        """Else a stream of readers would starve it."""
        api.need(Mode.SHARED)
        api.need_order()
        reader = await take(api.here.rwlock("x").read())
        writer = await api.queue_up(api.there.rwlock("x").write())
        assert await refused(api.here.rwlock("x").read())
        late = await api.queue_up(api.here.rwlock("x").read())
        await reader.release()
        written = await writer
        assert written is not None
        assert not late.done()
        await written.release()
        read = await late
        assert read is not None
        await read.release()

    @pytest.mark.req("R10", "R9")
    async def test_readers_behind_a_writer_enter_together(self, api: Api) -> None:
        api.need(Mode.SHARED)
        writer = await take(api.here.rwlock("x").write())
        turns = [
            await api.queue_up(client.rwlock("x").read()) for client in (api.here, api.there) * 2
        ]
        await writer.release()
        readers = [await turn for turn in turns]
        assert all(reader is not None and reader.held for reader in readers)
        for reader in readers:
            assert reader is not None
            await reader.release()

    @pytest.mark.req("R10", "head writer withdraws in front of readers")
    async def test_a_writer_that_gives_up_lets_the_readers_in(self, api: Api) -> None:
        api.need(Mode.SHARED)
        reader = await take(api.here.rwlock("x").read())
        assert await refused(api.there.rwlock("x").write())  # logs in, which may take longer
        writer = await api.queue_up(api.there.rwlock("x").write(), timeout=api.patience)
        late = await api.queue_up(api.connect().rwlock("x").read())
        assert await writer is None
        read = await late
        assert read is not None
        assert reader.held
        await read.release()
        await reader.release()

    @pytest.mark.req("R10", "head writer withdraws in front of readers", "waiter killed")
    async def test_a_writer_that_dies_lets_the_readers_in(self, api: Api) -> None:
        """It stops sending heartbeats; nobody releases anything."""
        api.need(Mode.SHARED)
        raw = api.raw()
        reader = await take(api.here.rwlock("x").read())
        await raw.queue(raw.claim("x", ttl=api.short))
        late = api.there.rwlock("x", ttl=api.brief).read()
        read = await take(late)
        assert reader.held
        await read.release()
        await reader.release()

    @pytest.mark.req("R10", "R1")
    async def test_a_crowd_of_readers_and_writers(self, api: Api) -> None:
        api.need(Mode.SHARED)
        reading = writing = 0

        async def reader(client: aio.Locks) -> None:
            nonlocal reading
            for _ in range(6):
                async with client.rwlock("x", timeout=3 * LONG).read():
                    reading += 1
                    assert writing == 0
                    await asyncio.sleep(0)
                    assert writing == 0
                    reading -= 1

        async def writer(client: aio.Locks) -> None:
            nonlocal writing
            for _ in range(6):
                async with client.rwlock("x", timeout=3 * LONG).write():
                    writing += 1
                    assert (reading, writing) == (0, 1)
                    await asyncio.sleep(0)
                    assert (reading, writing) == (0, 1)
                    writing -= 1

        clients = (api.here, api.there)
        await asyncio.gather(
            *(api.spawn(reader(clients[n % 2])) for n in range(4)),
            *(api.spawn(writer(clients[n % 2])) for n in range(2)),
        )

    @pytest.mark.req("B5")
    async def test_so_many_permits_and_no_more(self, api: Api) -> None:
        api.need(Mode.PERMITS)
        permits = [
            await take(client.semaphore("x", 3)) for client in (api.here, api.there, api.here)
        ]
        assert all(permit.mode is Mode.PERMITS for permit in permits)
        assert await refused(api.there.semaphore("x", 3))
        await permits[1].release()
        again = await take(api.there.semaphore("x", 3))
        assert await refused(api.there.semaphore("x", 3))
        for permit in (permits[0], permits[2], again):
            await permit.release()

    @pytest.mark.req("B5")
    async def test_several_permits_at_once(self, api: Api) -> None:
        api.need(Mode.PERMITS)
        two = await take(api.here.semaphore("x", 3, take=2))
        assert await refused(api.there.semaphore("x", 3, take=2))
        one = await take(api.there.semaphore("x", 3))
        assert await refused(api.there.semaphore("x", 3))
        await two.release()
        assert await refused(api.there.semaphore("x", 3, take=3))
        two = await take(api.there.semaphore("x", 3, take=2))
        await one.release()
        await two.release()
        await (await take(api.here.semaphore("x", 3, take=3))).release()

    @pytest.mark.req("B5", "R8")
    async def test_a_large_wish_is_not_starved(self, api: Api) -> None:
        """It is first in line, so one that would fit does not pass it; then both are served."""
        api.need(Mode.PERMITS)
        api.need_order()
        held = await take(api.here.semaphore("x", 3, take=2))
        large = await api.queue_up(api.there.semaphore("x", 3, take=3))
        assert await refused(api.here.semaphore("x", 3))
        small = await api.queue_up(api.here.semaphore("x", 3))
        await held.release()
        three = await large
        assert three is not None
        assert not small.done()
        await three.release()
        one = await small
        assert one is not None
        await one.release()

    @pytest.mark.req("B5", "R9")
    async def test_whichever_permit_comes_back_is_handed_over(self, api: Api) -> None:
        """The first waiter depends on all holders: any of them may leave first (a hazard)."""
        api.need(Mode.PERMITS)
        for leaver in (0, 1, 2):
            permits = [await take(api.here.semaphore("x", 3)) for _ in range(3)]
            waiter = await api.queue_up(api.there.semaphore("x", 3))
            await permits.pop(leaver).release()
            handed_over = await waiter
            assert handed_over is not None
            for permit in (*permits, handed_over):
                await permit.release()

    @pytest.mark.req("B5", "R6")
    async def test_a_permit_ends_by_itself(self, api: Api) -> None:
        api.need(Mode.PERMITS)
        stays = await take(api.here.semaphore("x", 2))
        ends = await take(api.here.semaphore("x", 2, ttl=api.short, renew=False))
        handed_over = await take(api.there.semaphore("x", 2))
        assert not ends.held
        assert stays.held
        assert await refused(api.there.semaphore("x", 2))
        assert await ends.release() is False  # gives nobody else's permit back
        assert await refused(api.there.semaphore("x", 2))
        await stays.release()
        await handed_over.release()

    @pytest.mark.req("B5", "R1")
    async def test_a_crowd_shares_permits(self, api: Api) -> None:
        api.need(Mode.PERMITS)
        taken = 0

        async def taker(number: int) -> None:
            nonlocal taken
            wants = 1 + number % 2
            semaphore = (api.here, api.there)[number % 2].semaphore("x", 3, take=wants)
            for _ in range(6):
                permit = await take(semaphore, timeout=3 * LONG)
                taken += wants
                assert taken <= 3
                await asyncio.sleep(0)
                taken -= wants
                await permit.release()

        await asyncio.gather(*(api.spawn(taker(n)) for n in range(6)))

    @pytest.mark.req("B5", "R10")
    async def test_modes_of_one_name_exclude_one_another(self, api: Api) -> None:
        api.need(Mode.PERMITS)
        async with api.here.lock("x"):
            assert await refused(api.there.semaphore("x", 2))
        async with api.here.semaphore("x", 2):
            assert await refused(api.there.lock("x"))
            if Mode.SHARED in api.capabilities.modes:
                assert await refused(api.there.rwlock("x").read())
