"""`locks.barrier`: all meet or none does, again and again; who dies, leaves or waits in vain breaks
it for all."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast import (
    AcquireTimeout,
    BrokenBarrier,
    Closed,
    Misconfigured,
    Mode,
    Unsupported,
    aio,
)
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on
from holdfast.toolbox import values
from holdfast.toolbox.barrier import PARTY, PREFIX


def ready(api: Api) -> None:
    api.need_cells()
    api.need(Mode.SHARED)
    api.need_inspection()


async def here(api: Api, barrier: aio.Barrier, parties: int) -> None:
    """Until so many wait."""

    async def so_many() -> bool:
        return await barrier.waiting() == parties

    await api.until(so_many, f"{parties} parties at {barrier}")


class Barrier(Theme):
    @pytest.mark.req("B5")
    async def test_all_meet_again_and_again(self, api: Api) -> None:
        ready(api)
        barriers = [locks.barrier("x", 3) for locks in (api.here, api.there, api.there)]
        rounds = 3
        arrived: list[int] = []

        async def party(barrier: aio.Barrier) -> list[int]:
            numbers: list[int] = []
            for turn in range(rounds):
                arrived.append(turn)
                numbers.append(await barrier.wait(timeout=2 * LONG))
                assert arrived.count(turn) == 3
            return numbers

        parties = [api.spawn(party(barrier)) for barrier in barriers]
        numbers = await asyncio.wait_for(asyncio.gather(*parties), 3 * LONG)
        for turn in range(rounds):
            assert sorted(one[turn] for one in numbers) == [0, 1, 2]
        assert await barriers[0].waiting() == 0
        assert not await barriers[0].broken()

    @pytest.mark.req("B5")
    async def test_who_waits_is_told_at_once_that_its_client_is_closed(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A barrier's party waits for a cell, as who waits for a latch or a leader does."""
        ready(api)
        monkeypatch.setattr(values, "LOOK", 10 * LONG)  # nobody looks by itself
        client, barrier = api.connect(), api.there.barrier("x", 2)
        party = api.spawn(client.barrier("x", 2).wait())
        await here(api, barrier, 1)
        await client.close()
        with pytest.raises((Closed, BrokenBarrier)):
            await asyncio.wait_for(party, LONG)
        with pytest.raises(BrokenBarrier):  # it is missed
            await barrier.wait()

    @pytest.mark.req("B5", "R7")
    async def test_who_waits_in_vain_breaks_it_for_all(self, api: Api) -> None:
        ready(api)
        barrier, other = api.here.barrier("x", 3), api.there.barrier("x", 3)
        with pytest.raises(AcquireTimeout):
            await barrier.wait(timeout=0)  # waits for nobody, and breaks nothing
        assert not await barrier.broken()
        waiting = api.spawn(other.wait())
        await here(api, barrier, 1)
        with pytest.raises(BrokenBarrier, match="in vain"):
            await barrier.wait(timeout=0.05)
        with pytest.raises(BrokenBarrier, match="in vain"):
            await asyncio.wait_for(waiting, LONG)
        assert await other.broken()
        with pytest.raises(BrokenBarrier):
            await other.wait()
        await other.reset()
        assert not await barrier.broken()
        parties = [api.spawn(barrier.wait()) for _ in range(2)]
        await here(api, barrier, 2)
        assert await other.wait(timeout=0) == 2
        assert sorted(await asyncio.wait_for(asyncio.gather(*parties), LONG)) == [0, 1]

    @pytest.mark.req("B5")
    async def test_abort_and_reset_are_heard_by_who_waits(self, api: Api) -> None:
        ready(api)
        barrier, other = api.here.barrier("x", 2), api.there.barrier("x", 2)
        for act in (other.abort, other.reset):
            waiting = api.spawn(barrier.wait())
            await here(api, other, 1)
            await act()
            with pytest.raises(BrokenBarrier):
                await asyncio.wait_for(waiting, LONG)
            await other.reset()
        await other.reset()
        assert await other.waiting() == 0
        await api.free(PREFIX + "x")

    @pytest.mark.req("B5", "R2", "holder killed -9")
    async def test_a_party_that_is_gone_is_missed(self, api: Api) -> None:
        """As when it died: its presence is gone, and it has said nothing."""
        ready(api)
        ttl = max(3.0, api.short)  # a busy machine does not lose it by itself
        dying, other = api.here.barrier("x", 3, ttl=10 * LONG), api.there.barrier("x", 3, ttl=ttl)
        gone = api.spawn(dying.wait())
        await here(api, other, 1)
        waiting = api.spawn(other.wait())
        await here(api, other, 2)
        info = await api.look(PREFIX + "x")
        assert len({holder.info[PARTY] for holder in info.holders}) == 2
        await api.there.evict(PREFIX + "x")
        with pytest.raises(BrokenBarrier, match=r"died|lost"):
            await asyncio.wait_for(waiting, LONG)
        with pytest.raises(BrokenBarrier):
            await asyncio.wait_for(gone, LONG)

    @pytest.mark.req("B5", "law 4", "asyncio cancellation at any await")
    @only_on("aio")
    async def test_a_party_is_cancelled_anywhere(self, api: Api) -> None:
        ready(api)
        barrier, other = api.here.barrier("x", 2, ttl=10 * LONG), api.there.barrier("x", 2)
        for count in range(0, 40, 4):
            task = api.spawn(barrier.wait())
            for _ in range(count):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await api.free(PREFIX + "x")
            await other.reset()
        task = api.spawn(barrier.wait())
        await here(api, other, 1)
        task.cancel()

        async def broken() -> bool:  # sooner than it would be missed
            return await other.broken()

        await api.until(broken, "a barrier that one party left")

    @pytest.mark.req("B5")
    async def test_what_is_wrong_with_a_barrier(self, api: Api) -> None:
        capable = api.capabilities.cells and Mode.SHARED in api.capabilities.modes
        if not capable or not api.capabilities.inspection:
            with pytest.raises(Unsupported):
                api.here.barrier("x", 2)
            return
        waiting = api.spawn(api.here.barrier("x", 2).wait())
        await here(api, api.there.barrier("x", 2), 1)
        with pytest.raises(Misconfigured, match="of 2 parties"):
            await api.there.barrier("x", 3).wait()
        assert await api.there.barrier("x", 2).wait() == 1
        assert await waiting == 0
        for parties in (0, 1.5, True, 2000):
            with pytest.raises(Misconfigured):
                api.here.barrier("y", parties)  # type: ignore[arg-type]
        with pytest.raises(Misconfigured):
            api.here.barrier("y", 2, metadata={PARTY: "mine"})
        assert await api.here.barrier("z", 1).wait() == 0
