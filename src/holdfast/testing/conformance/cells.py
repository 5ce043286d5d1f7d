"""Cells: small versioned values, on which once, latch, barrier and elections are built."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.testing.conformance.harness import LONG, Api, Theme, take
from holdfast.types import Cell, CellConflict, Unknown

FAR = 10 * LONG
"""A deadline no test reaches: at its deadline a wait returns what is there, changed or not."""


class Cells(Theme):
    @pytest.mark.req("cells")
    async def test_what_was_written_is_read(self, api: Api) -> None:
        api.need_cells()
        here, there = api.raw(), api.raw()
        assert await here.read("c") is None
        written = await here.write("c", b"one")
        assert written.value == b"one"
        assert written.version > 0
        assert await there.read("c") == written
        again = await there.write("c", b"two")
        assert again.version > written.version
        assert await here.read("c") == again

    @pytest.mark.req("cells")
    @pytest.mark.parametrize(
        "value", [b"", b"\0", bytes(range(256)), b"\xff\xfe", b"1", b"x" * 65536], ids=len
    )
    async def test_any_bytes_come_back(self, api: Api, value: bytes) -> None:
        api.need_cells()
        raw = api.raw()
        await raw.write("c", value)
        cell = await raw.read("c")
        assert cell is not None
        assert cell.value == value

    @pytest.mark.req("cells")
    async def test_compare_and_set(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        first = await raw.write("c", b"one", expect=0)
        refused = await raw.try_write("c", b"no", expect=0)
        assert isinstance(refused, CellConflict)
        assert refused.current == first
        assert refused.reason
        second = await raw.write("c", b"two", expect=first.version)
        for stale in (first.version, second.version + 1, 0):
            refused = await raw.try_write("c", b"no", expect=stale)
            assert isinstance(refused, CellConflict)
            assert refused.current == second
        assert await raw.read("c") == second

    @pytest.mark.req("cells")
    async def test_delete(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        first = await raw.write("c", b"one")
        refused = await raw.try_write("c", None, expect=first.version + 1)
        assert isinstance(refused, CellConflict)
        await raw.write("c", None, expect=first.version)
        assert await raw.read("c") is None
        refused = await raw.try_write("c", b"no", expect=first.version)
        assert isinstance(refused, CellConflict)
        assert refused.current is None
        again = await raw.write("c", b"again", expect=0)
        assert again.version > first.version  # also over a deletion
        await raw.write("c", None)
        await raw.write("c", None)
        assert await raw.read("c") is None

    @pytest.mark.req("cells", "B1")
    async def test_a_lower_fence_is_refused(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        cell = await raw.write("c", b"five", fence=5)
        refused = await raw.try_write("c", b"four", fence=4)
        assert isinstance(refused, CellConflict)
        assert refused.current == cell
        cell = await raw.write("c", b"five again", fence=5)
        cell = await raw.write("c", b"big", fence=2**53 + 1)
        refused = await raw.try_write("c", b"rounded", fence=2**53)
        assert isinstance(refused, CellConflict)
        assert await raw.read("c") == cell

    @pytest.mark.req("cells", "B1")
    async def test_a_fence_is_remembered_beyond_the_value(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        await raw.write("c", b"five", fence=5)
        await raw.write("c", None, fence=6)
        assert isinstance(await raw.try_write("c", b"five", fence=5), CellConflict)
        assert isinstance(await raw.try_write("c", b"five", fence=5, expect=0), CellConflict)
        assert await raw.read("c") is None
        await raw.write("c", b"six", fence=6)

    @pytest.mark.req("cells", "B1")
    async def test_a_fence_is_remembered_over_writes_without_one(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        await raw.write("c", b"five", fence=5)
        await raw.write("c", b"none")
        assert isinstance(await raw.try_write("c", b"four", fence=4), CellConflict)

    @pytest.mark.req("cells", "B1", "R3")
    async def test_a_stale_holder_cannot_write(self, api: Api) -> None:
        """The point of it all: an earlier holder's token is refused after a later one wrote."""
        api.need_cells()
        api.need_token()
        raw = api.raw()
        lease = await take(api.here.lock("x", ttl=api.short, renew=False))
        successor = await take(api.there.lock("x"))
        cell = await raw.write("c", b"successor", fence=successor.fence)
        assert isinstance(await raw.try_write("c", b"stale", fence=lease.fence), CellConflict)
        assert await raw.read("c") == cell
        await successor.release()

    @pytest.mark.req("cells")
    async def test_a_value_with_a_ttl_is_forgotten(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        written = await raw.write("c", b"one", ttl=api.short)

        async def forgotten() -> bool:
            return await raw.read("c") is None

        await api.until(forgotten, "a value with a ttl is forgotten")
        assert isinstance(await raw.try_write("c", b"no", expect=written.version), CellConflict)
        again = await raw.write("c", b"again", expect=0)
        assert again.version > written.version

    @pytest.mark.req("cells")
    async def test_a_later_write_decides_the_ttl(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        await raw.write("c", b"short", ttl=api.short)
        await raw.write("d", b"short", ttl=api.short)
        stays = await raw.write("c", b"for ever")
        longer = await raw.write("d", b"longer", ttl=10 * LONG)
        await api.pass_time(1.5 * api.short)
        assert await raw.read("c") == stays
        assert await raw.read("d") == longer

    @pytest.mark.req("cells", "R9")
    async def test_wait_for_a_change(self, api: Api) -> None:
        api.need_cells()
        here, there = api.raw(), api.raw()
        first = await here.write("c", b"one")
        assert await there.wait_for_change("c", 0) == first  # it differs already
        waiting = api.spawn(there.wait_for_change("c", first.version, within=FAR))
        await asyncio.sleep(0.03)
        assert not waiting.done()
        second = await here.write("c", b"two")
        assert await asyncio.wait_for(waiting, LONG) == second
        waiting = api.spawn(there.wait_for_change("c", second.version, within=FAR))
        await asyncio.sleep(0.03)
        await here.write("c", None)
        assert await asyncio.wait_for(waiting, LONG) is None

    @pytest.mark.req("cells")
    async def test_wait_until_it_exists(self, api: Api) -> None:
        api.need_cells()
        here, there = api.raw(), api.raw()
        waiting = [api.spawn(there.wait_for_change("c", 0, within=FAR)) for _ in range(3)]
        await asyncio.sleep(0.03)
        written = await here.write("c", b"")
        assert await asyncio.wait_for(asyncio.gather(*waiting), LONG) == [written] * 3

    @pytest.mark.req("cells")
    async def test_two_who_wait_in_one_process_are_both_told(self, api: Api) -> None:
        """Of two clients; and one that stops waiting does not take the other's word away."""
        api.need_cells()
        one, two, writer = api.raw(), api.raw(), api.raw()
        both = [api.spawn(raw.wait_for_change("c", 0, within=FAR)) for raw in (one, two)]
        await asyncio.sleep(0.03)
        first = await writer.write("c", b"one")
        # Sooner than anybody looks by itself.
        assert await asyncio.wait_for(asyncio.gather(*both), 3) == [first, first]
        waiting = api.spawn(one.wait_for_change("c", first.version, within=FAR))
        await asyncio.sleep(0.03)
        assert await two.wait_for_change("c", first.version, within=0.05) == first
        second = await writer.write("c", b"two")
        assert await asyncio.wait_for(waiting, 3) == second

    @pytest.mark.req("cells")
    async def test_wait_has_its_limit(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        assert await raw.read("c") is None  # logs in, which may take longer than the wait
        begun = api.now()
        assert await raw.wait_for_change("c", 0, within=0.1) is None
        assert 0.1 <= api.now() - begun < LONG
        written = await raw.write("c", b"one")
        begun = api.now()
        assert await raw.wait_for_change("c", written.version, within=0.1) == written
        assert 0.1 <= api.now() - begun < LONG

    @pytest.mark.req("cells", "key expires while waiters queue")
    async def test_wait_notices_that_a_value_is_forgotten(self, api: Api) -> None:
        """Nobody writes, so nobody else wakes who waits."""
        api.need_cells()
        raw = api.raw()
        written = await raw.write("c", b"one", ttl=api.short)
        waiting = api.spawn(raw.wait_for_change("c", written.version, within=FAR))
        assert await asyncio.wait_for(waiting, LONG) is None
        assert await raw.read("c") is None

    @pytest.mark.req("cells", "R9")
    @pytest.mark.parametrize("forgotten", [False, True])
    async def test_waiting_is_silent(self, api: Api, forgotten: bool) -> None:
        """It is not polled, neither for a cell that never was nor for one that was forgotten."""
        api.need_cells()
        here, there = api.raw(), api.raw()
        if forgotten:
            await here.write("c", b"one", ttl=api.short)

            async def over() -> bool:
                return await here.read("c") is None

            await api.until(over, "a value with a ttl is forgotten")
        begun = api.strategy.requests()
        waiting = api.spawn(there.wait_for_change("c", 0, within=FAR))

        async def is_silent() -> bool:
            before = api.strategy.requests()
            await asyncio.sleep(0.2)
            return begun < before and api.strategy.requests() - before <= 3

        async def at_rest() -> bool:  # a busy machine may take a while until it has begun
            return all([await is_silent() for _ in range(3)])

        await api.until(at_rest, "it waits, and asks nothing")
        written = await here.write("c", b"two")
        assert await asyncio.wait_for(waiting, LONG) == written

    @pytest.mark.req("cells")
    async def test_a_crowd_counts_by_compare_and_set(self, api: Api) -> None:
        api.need_cells()
        here, there = api.raw(), api.raw()
        await here.write("c", b"0")

        async def add(number: int) -> None:
            raw = (here, there)[number % 2]
            for _ in range(5):
                cell = await raw.read("c")
                while True:
                    assert cell is not None
                    value = str(int(cell.value) + 1).encode()
                    answer = await raw.try_write("c", value, expect=cell.version)
                    if isinstance(answer, Cell):
                        break
                    assert isinstance(answer, CellConflict)
                    cell = answer.current

        await asyncio.gather(*(api.spawn(add(number)) for number in range(6)))
        counted = await here.read("c")
        assert counted is not None
        assert counted.value == b"30"

    @pytest.mark.req("cells", "names")
    async def test_cells_and_locks_have_names_of_their_own(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        async with api.here.lock("x") as lease:
            await raw.write("x", b"one")
            lease.check()
            await lease.renew()
        cell = await raw.read("x")
        assert cell is not None
        assert cell.value == b"one"
        for name in ("c", "C", "c/", "c\0", "{c}", "ç", "c" * 1024):
            assert await raw.read(name) is None
            await raw.write(name, name.encode(), expect=0)
        for name in ("c", "C", "c/", "c\0", "{c}", "ç", "c" * 1024):
            cell = await raw.read(name)
            assert cell is not None
            assert cell.value == name.encode()

    @pytest.mark.req("cells", "reply lost, command applied")
    async def test_a_write_without_an_answer_is_unknown(self, api: Api) -> None:
        api.need_cells()
        raw = api.raw()
        first = await raw.write("c", b"one")
        api.strategy.drop_next_reply()
        answer = await raw.try_write("c", b"two", expect=first.version, within=0.5)
        cell = await raw.read("c")
        assert cell is not None
        assert cell.value == b"two"
        assert isinstance(answer, Unknown) or answer == cell
