"""`locks.election`: one leads, everybody may know who, and a leader of the past is silent."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast import LeaseLost, Misconfigured, Mode, Unsupported, aio
from holdfast.testing.conformance.harness import LONG, Api, Theme, only_on
from holdfast.testing.conformance.processes import in_a_fork
from holdfast.toolbox.election import PREFIX


def ready(api: Api) -> None:
    api.need_cells()
    api.need_token()


async def leads(election: aio.Election, value: object = None) -> aio.Leadership:
    leadership = await election.campaign(value, timeout=LONG)
    assert leadership is not None
    return leadership


class Election(Theme):
    @pytest.mark.req("B5", "R1", "B1")
    async def test_one_leads_and_the_next_in_line_follows(self, api: Api) -> None:
        ready(api)
        here, there = api.here.election("x"), api.there.election("x")
        assert await there.leader() is None
        first = await leads(here, {"at": "here"})
        seen = await there.leader()
        assert seen is not None
        assert (seen.value, seen.fence) == ({"at": "here"}, first.fence)
        assert await there.campaign("there", timeout=0) is None
        assert await there.campaign("there", timeout=api.patience) is None
        candidate = api.spawn(leads(there, "there"))
        if api.capabilities.inspection:
            await api.in_line(PREFIX + "x", 1)
        assert await here.resign() is True
        second = await asyncio.wait_for(candidate, LONG)
        assert not first.held
        assert second.held
        assert second.fence > first.fence
        seen = await here.leader()
        assert seen is not None
        assert (seen.value, seen.fence) == ("there", second.fence)
        assert await here.resign() is False
        assert await second.release() is True
        assert await here.leader() is None

    @pytest.mark.req("B5", "R9")
    async def test_observers_hear_of_each_change(self, api: Api) -> None:
        ready(api)
        seen = api.there.election("x").observe(timeout=LONG)
        assert await anext(seen) is None
        leadership = await leads(api.here.election("x"), 1)
        leader = await anext(seen)
        assert leader is not None
        assert (leader.value, leader.fence) == (1, leadership.fence)
        await leadership.proclaim(2)
        leader = await anext(seen)
        assert leader is not None
        assert leader.value == 2
        waiting = api.spawn(anext(seen))
        await leadership.release()
        assert await asyncio.wait_for(waiting, LONG) is None
        assert [leader async for leader in api.here.election("x").observe(timeout=0.05)] == [None]

    @pytest.mark.req("B5", "R2", "law 5")
    async def test_who_leads_no_more_knows_it_before_the_next_one_leads(self, api: Api) -> None:
        ready(api)
        first = await leads(api.here.election("x", ttl=api.brief, renew=False))
        second = await leads(api.there.election("x"))
        assert not first.held
        assert first.lost.is_set()
        with pytest.raises(LeaseLost):
            await first.proclaim("late")
        seen = await api.here.election("x").leader()
        assert seen is not None
        assert seen.fence == second.fence
        await second.release()

    @pytest.mark.req("B5", "B1", "eviction")
    async def test_a_leader_of_the_past_is_silent(self, api: Api) -> None:
        """It does not know yet that another one leads; what it says is refused by its token."""
        ready(api)
        api.need_inspection()
        for name in ("speaks", "resigns"):
            first = await leads(api.here.election(name), "first")
            assert await api.there.evict(PREFIX + name) == 1
            second = await leads(api.there.election(name), "second")
            if name == "speaks":
                with pytest.raises(LeaseLost):
                    await first.proclaim("late")
            await first.release()
            assert not first.held
            seen = await api.there.election(name).leader()
            assert seen is not None
            assert (seen.value, seen.fence) == ("second", second.fence)
            await second.release()

    @pytest.mark.req("B5", "R2")
    async def test_that_a_leader_is_gone_and_nobody_follows_is_news_too(self, api: Api) -> None:
        ready(api)
        api.need_inspection()
        await leads(api.here.election("x", ttl=api.brief, renew=False))
        seen = api.there.election("x").observe(timeout=LONG)
        async for leader in seen:
            if leader is None:
                break
        else:
            raise AssertionError("nothing was said of the vacancy")
        assert await api.there.election("x").leader() is None

    @pytest.mark.req("B5", "eviction")
    async def test_run_when_leader_begins_again_after_a_loss(self, api: Api) -> None:
        ready(api)
        api.need_inspection()
        election = api.here.election("x", ttl=10 * LONG, renew=api.often)
        turns: list[aio.Leadership] = []
        begun = asyncio.Queue[None]()

        async def work(leadership: aio.Leadership) -> str:
            turns.append(leadership)
            begun.put_nowait(None)
            if len(turns) == 1:
                await leadership.lost.wait(LONG)
                return "too late to count"
            return f"turn {len(turns)}"

        running = api.spawn(election.run_when_leader(api.function(work), value="here"))
        await asyncio.wait_for(begun.get(), LONG)
        assert await api.there.evict(PREFIX + "x") == 1
        assert await asyncio.wait_for(running, LONG) == "turn 2"
        assert not turns[0].held
        assert await api.there.election("x").leader() is None

    @pytest.mark.req("B5")
    async def test_what_run_when_leader_raises_is_raised_after_it_resigned(self, api: Api) -> None:
        ready(api)

        async def work(leadership: aio.Leadership) -> None:
            assert leadership.held
            raise OSError("broken")

        with pytest.raises(OSError, match="broken"):
            await api.here.election("x").run_when_leader(api.function(work))
        second = await leads(api.there.election("x"))
        await second.release()

    @pytest.mark.req("B5", "fork after acquire", "law 8")
    async def test_a_forked_child_does_not_lead(self, api: Api) -> None:
        ready(api)
        election = api.here.election("x")
        leadership = await leads(election)

        async def child() -> list[bool]:
            return [leadership.held, await leadership.release()]

        assert await in_a_fork(child) == [False, False]
        assert leadership.held
        seen = await api.there.election("x").leader()
        assert seen is not None
        assert await leadership.release() is True

    @pytest.mark.req("B5", "law 4", "asyncio cancellation at any await")
    @only_on("aio")
    async def test_a_campaign_is_cancelled_anywhere(self, api: Api) -> None:
        ready(api)
        election = api.here.election("x")
        for count in range(0, 30, 3):
            task = api.spawn(election.campaign("here"))
            for _ in range(count):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                leadership = await task
                assert leadership is not None
                await leadership.release()
            await (await leads(api.there.election("x"), "there")).release()
        assert await election.resign() is False

    @pytest.mark.req("B5")
    async def test_what_is_wrong_with_an_election(self, api: Api) -> None:
        if not api.capabilities.cells or Mode.EXCLUSIVE not in api.capabilities.fencing:
            with pytest.raises(Unsupported):
                api.here.election("x")
            return
        election = api.here.election("x")
        for value in (object(), b"x" * 65537):
            with pytest.raises(Misconfigured):
                await election.campaign(value)
        with pytest.raises(Misconfigured):
            api.here.election("x", reentrant=True)
        with pytest.raises(Misconfigured):
            api.here.election("")
        assert await election.leader() is None
