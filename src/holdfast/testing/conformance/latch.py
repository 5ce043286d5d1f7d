"""`locks.latch`: opens after so many counts, each of which counts once, whatever is lost."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast import Misconfigured, Unsupported
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on


class Latch(Theme):
    @pytest.mark.req("B5", "R7")
    async def test_it_opens_with_the_last_count(self, api: Api) -> None:
        api.need_cells()
        here, there = api.here.latch("x", 3), api.there.latch("x", 3)
        assert await here.count() == 3
        waiting = [api.spawn(latch.wait()) for latch in (here, there)]
        assert await there.count_down() == 2
        assert await here.wait(timeout=0) is False
        assert await here.wait(timeout=0.05) is False
        assert not any(task.done() for task in waiting)
        assert await here.count_down(2) == 0
        assert await asyncio.wait_for(asyncio.gather(*waiting), LONG) == [True, True]
        assert await there.wait(timeout=0) is True
        assert await there.count_down() == 0
        assert await there.count() == 0
        assert await api.here.latch("y", 3).count() == 3

    @pytest.mark.req("B5")
    async def test_a_crowd_counts(self, api: Api) -> None:
        api.need_cells()
        latches = [locks.latch("x", 20) for locks in (api.here, api.there)]
        waiting = api.spawn(latches[0].wait())

        async def count(number: int) -> None:
            for _ in range(5):
                await latches[number % 2].count_down()

        await asyncio.gather(*(api.spawn(count(number)) for number in range(4)))
        assert await asyncio.wait_for(waiting, LONG) is True

    @pytest.mark.req("B5", "law 2", "reply lost, command applied")
    async def test_a_count_without_an_answer_counts_once(self, api: Api) -> None:
        api.need_cells()
        latch = api.connect(request_timeout=LONG / 2).latch("x", 5)
        assert await latch.count_down() == 4
        # What a latch object has counted last is what it builds on: it writes at once.
        api.strategy.drop_next_reply()
        assert await latch.count_down() == 3
        assert await api.there.latch("x", 5).count() == 3

    @pytest.mark.req("B5")
    async def test_what_is_wrong_with_a_latch(self, api: Api) -> None:
        if not api.capabilities.cells:
            with pytest.raises(Unsupported):
                api.here.latch("x", 1)
            return
        await api.here.latch("x", 3).count_down()
        with pytest.raises(Misconfigured, match="made for 3"):
            await api.there.latch("x", 2).count_down()
        for count in (0, -1, 1.5, True):
            with pytest.raises(Misconfigured):
                api.here.latch("y", count)  # type: ignore[arg-type]
        with pytest.raises(Misconfigured):
            await api.here.latch("y", 1).count_down(0)
        with pytest.raises(Misconfigured):
            api.here.latch("", 1)

    @pytest.mark.req("B5", "law 4", "asyncio cancellation at any await")
    @only_on("aio")
    async def test_a_count_is_cancelled_anywhere(self, api: Api) -> None:
        """A count that was cancelled has counted or has not; those that were not have."""
        api.need_cells()
        latch = api.here.latch("x", 100)
        done = 0
        for count in range(0, 30, 3):
            before = await latch.count()
            task = api.spawn(latch.count_down())
            for _ in range(count):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                done += 1
            assert before - 1 <= await latch.count() <= before
        assert await latch.count() <= 100 - done
