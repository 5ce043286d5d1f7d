"""`locks.once`: one computes, everybody reads; and what becomes of failures and of slow ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import AcquireTimeout, Misconfigured, Mode, Unsupported, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on
from holdfast.toolbox.once import COMPUTING, FRESH, KEPT, USING

TTL = 600.0


class Source:
    """What is computed, and how often it was; at will it fails, or waits to be let go."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.begun = 0
        self.failing = 0  # computations up to this number fail
        self.at_work = asyncio.Event()
        self.let_go = asyncio.Event()
        self.let_go.set()

    def of(self, locks: aio.Locks, name: str = "x", **options: Any) -> aio.Once[Any]:
        ttl = options.pop("ttl", TTL)
        return locks.once(name, ttl, self.function(), **options)

    def function(self) -> Callable[[], Any]:
        async def compute() -> Any:
            self.begun += 1
            number = self.begun
            self.at_work.set()
            await asyncio.wait_for(self.let_go.wait(), 3 * LONG)
            if number <= self.failing:
                raise OSError(f"failure {number}")
            return {"value": number}

        return self.api.function(compute)


def ready(api: Api) -> Source:
    api.need_cells()
    api.need_token()
    return Source(api)


async def grown_old(api: Api, name: str = "x") -> None:
    """Until a value is not fresh any more."""
    raw = api.raw()

    async def old() -> bool:
        return await raw.read(FRESH + name) is None and await raw.read(KEPT + name) is not None

    await api.until(old, "a value to be replaced")


class Once(Theme):
    @pytest.mark.req("R70", "B5")
    async def test_one_computes_and_everybody_reads(self, api: Api) -> None:
        source = ready(api)
        source.let_go.clear()
        first = api.spawn(source.of(api.here).get())
        await asyncio.wait_for(source.at_work.wait(), LONG)
        others = [api.spawn(source.of(locks).get()) for locks in (api.here, api.there) * 3]
        if api.capabilities.inspection:
            await api.in_line(COMPUTING + "x", 6)
        source.let_go.set()
        values = await asyncio.wait_for(asyncio.gather(first, *others), LONG)
        assert values == [{"value": 1}] * 7
        assert await source.of(api.there).get() == {"value": 1}
        assert source.begun == 1

    @pytest.mark.req("R70", "B5")
    async def test_a_failure_is_raised_where_it_was_and_the_next_one_computes(
        self, api: Api
    ) -> None:
        source = ready(api)
        source.failing = 1
        source.let_go.clear()
        first = api.spawn(source.of(api.here).get())
        await asyncio.wait_for(source.at_work.wait(), LONG)
        others = [api.spawn(source.of(locks).get()) for locks in (api.here, api.there)]
        if api.capabilities.inspection:
            await api.in_line(COMPUTING + "x", 2)
        source.let_go.set()
        with pytest.raises(OSError, match="failure 1"):
            await asyncio.wait_for(first, LONG)
        assert await asyncio.wait_for(asyncio.gather(*others), LONG) == [{"value": 2}] * 2
        assert source.begun == 2

    @pytest.mark.req("R70", "B5")
    async def test_ahead_of_its_end_one_replaces_it_and_the_others_read_the_old_one(
        self, api: Api
    ) -> None:
        source = ready(api)
        here, there = (source.of(locks, ahead=TTL - api.short) for locks in (api.here, api.there))
        assert await here.get() == {"value": 1}
        await grown_old(api)
        source.let_go.clear()
        source.at_work.clear()
        replacing = api.spawn(here.get())
        await asyncio.wait_for(source.at_work.wait(), LONG)
        for once in (here, there):
            assert await asyncio.wait_for(api.spawn(once.get()), LONG) == {"value": 1}
        source.let_go.set()
        assert await asyncio.wait_for(replacing, LONG) == {"value": 2}
        assert await there.get() in ({"value": 2}, {"value": 3})  # it may have grown old again

    @pytest.mark.req("R70", "B5")
    async def test_a_replacement_that_fails_leaves_the_old_one(self, api: Api) -> None:
        source = ready(api)
        once = source.of(api.here, ahead=TTL - api.short)
        assert await once.get() == {"value": 1}
        await grown_old(api)
        source.failing = 2
        assert await once.get() == {"value": 1}
        assert await once.get() == {"value": 1}
        assert source.begun == 2  # it is not tried again at once
        assert (await source.of(api.there, ahead=TTL - api.short).get())["value"] == 3

    @pytest.mark.req("R70", "B5", "R6")
    async def test_a_value_ends_after_its_time(self, api: Api) -> None:
        source = ready(api)
        once = source.of(api.here, ttl=api.short, ahead=0)
        await once.get()

        async def over() -> bool:
            return bool((await once.get())["value"] > 1)

        await api.until(over, "a value whose time is over")

    @pytest.mark.req("R70", "B5")
    async def test_invalidate(self, api: Api) -> None:
        source = ready(api)
        here, there = source.of(api.here), source.of(api.there)
        assert await here.get() == {"value": 1}
        await there.invalidate({"value": 0})  # it is not that one
        assert await here.get() == {"value": 1}
        await there.invalidate({"value": 1})
        assert await here.get() == {"value": 2}
        await there.invalidate()
        assert await here.get() == {"value": 3}
        await source.of(api.here, "never computed").invalidate()

    @pytest.mark.req("R70", "B5")
    async def test_what_is_computed_before_an_invalidation_is_forgotten_as_well(
        self, api: Api
    ) -> None:
        source = ready(api)
        source.let_go.clear()
        computing = api.spawn(source.of(api.here).get())
        await asyncio.wait_for(source.at_work.wait(), LONG)
        with pytest.raises(AcquireTimeout):
            await source.of(api.there).invalidate(timeout=0)
        invalidating = api.spawn(source.of(api.there).invalidate())
        if api.capabilities.inspection:
            await api.in_line(COMPUTING + "x", 1)
        source.let_go.set()
        assert await asyncio.wait_for(computing, LONG) == {"value": 1}
        await asyncio.wait_for(invalidating, LONG)
        assert await source.of(api.here).get() == {"value": 2}

    @pytest.mark.req("R70", "B5", "B1")
    async def test_a_slow_old_computation_never_replaces_a_newer_one(self, api: Api) -> None:
        source = ready(api)
        api.need_lasting_leases()
        source.let_go.clear()
        slow = api.spawn(source.of(api.here).get())
        await asyncio.wait_for(source.at_work.wait(), LONG)
        for name in (COMPUTING + "x", USING + "x"):
            await api.there.evict(name)
        quick = Source(api)
        quick.begun = 10
        assert await asyncio.wait_for(api.spawn(quick.of(api.there).get()), LONG) == {"value": 11}
        source.let_go.set()
        # Its claim is gone, or its token is too old: it reads what is there.
        assert await asyncio.wait_for(slow, LONG) == {"value": 11}
        assert await quick.of(api.there).get() == {"value": 11}

    @pytest.mark.req("R70", "B5")
    async def test_what_is_in_use_is_not_replaced(self, api: Api) -> None:
        source = ready(api)
        api.need(Mode.SHARED)
        api.need_inspection()
        here, there = (source.of(locks, ahead=TTL - api.short) for locks in (api.here, api.there))
        async with here.hold() as using:
            assert using.value == {"value": 1}
            await grown_old(api)
            replacing = api.spawn(there.get())
            await api.in_line(USING + "x", 1)
            assert await here.get() == using.value  # inside: it does not wait for itself
            async with here.hold() as again:
                assert again.value == using.value
            assert source.begun == 1
        assert await asyncio.wait_for(replacing, LONG) == {"value": 2}
        await api.free(USING + "x")

    @pytest.mark.req("R70", "B5")
    async def test_values(self, api: Api) -> None:
        api.need_cells()
        api.need_token()
        for number, value in enumerate(
            (b"", b"\0\xff", "ü", 0, None, [1, {"a": None}], 1.5, b"x" * 65536)
        ):

            async def compute(value: Any = value) -> Any:
                return value

            once = api.here.once(f"v{number}", TTL, api.function(compute))
            assert await once.get() == value
            assert await once.get() == value

    @pytest.mark.req("R70", "B5")
    async def test_what_cannot_be_kept_is_refused(self, api: Api) -> None:
        api.need_cells()
        api.need_token()
        for value in (object(), {1, 2}, float("nan"), b"x" * 65537, "x" * 70000):

            async def compute(value: Any = value) -> Any:
                return value

            with pytest.raises(Misconfigured):
                await api.here.once("x", TTL, api.function(compute)).get()
        assert await Source(api).of(api.there).get() == {"value": 1}

    @pytest.mark.req("R70", "B5", "R7")
    async def test_time_runs_out_while_somebody_computes(self, api: Api) -> None:
        source = ready(api)
        source.let_go.clear()
        first = api.spawn(source.of(api.here).get())
        await asyncio.wait_for(source.at_work.wait(), LONG)
        for timeout in (0, api.patience):  # a busy store answers in that time
            with pytest.raises(AcquireTimeout):
                await source.of(api.there).get(timeout=timeout)
        with pytest.raises(AcquireTimeout):
            await source.of(api.there, timeout=0).get()
        source.let_go.set()
        assert await asyncio.wait_for(first, LONG) == {"value": 1}
        assert await source.of(api.there).get(timeout=0) == {"value": 1}

    @pytest.mark.req("R70", "B5", "law 4", "asyncio cancellation at any await")
    @only_on("aio")
    async def test_a_computation_is_cancelled_anywhere(self, api: Api) -> None:
        source = ready(api)
        for count in range(0, 40, 3):
            once = source.of(api.here, f"c{count}")
            task = api.spawn(once.get())
            for _ in range(count):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            value = await source.of(api.there, f"c{count}").get(timeout=LONG)
            assert value["value"] <= source.begun
            for kind in (COMPUTING, USING):
                await api.free(kind + f"c{count}")

    @pytest.mark.req("R70", "B5")
    async def test_without_values_or_tokens_it_says_so(self, api: Api) -> None:
        able = api.capabilities.cells and Mode.EXCLUSIVE in api.capabilities.fencing
        if able and Mode.SHARED in api.capabilities.modes:
            pytest.skip("capabilities: has everything")
        with pytest.raises(Unsupported):
            Source(api).of(api.here).hold()
