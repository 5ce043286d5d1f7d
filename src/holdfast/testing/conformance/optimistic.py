"""`locks.optimistic`: of all who read the same version one commits, whatever is lost (R42)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Misconfigured, Unsupported
from holdfast.testing.conformance.harness import LONG, Api, Theme


class Optimists(Theme):
    @pytest.mark.req("R42")
    async def test_of_all_who_read_a_version_one_commits(self, api: Api) -> None:
        api.need_cells()
        documents = [client.optimistic("x") for client in (api.here, api.there) * 2]
        version = 0
        for _ in range(3):
            assert {await document.version() for document in documents} == {version}
            commits = [api.spawn(document.commit(version)) for document in documents]
            came_to = await asyncio.wait_for(asyncio.gather(*commits), LONG)
            (new,) = [version for version in came_to if version is not None]
            assert new > version
            version = new
        assert await api.here.optimistic("y").version() == 0

    @pytest.mark.req("R42")
    async def test_an_old_version_is_refused_for_ever(self, api: Api) -> None:
        api.need_cells()
        here, there = api.here.optimistic("x"), api.there.optimistic("x")
        first = await here.commit(0)
        assert first is not None
        second = await there.commit(first)
        assert second is not None
        for old in (0, first):
            assert await here.commit(old) is None
        assert await here.version() == second

    @pytest.mark.req("R42", "law 2", "reply lost, command applied")
    async def test_a_commit_without_an_answer_is_found(self, api: Api) -> None:
        api.need_cells()
        document = api.connect(request_timeout=LONG / 2).optimistic("x")
        first = await document.commit(0)
        assert first is not None
        api.strategy.drop_next_reply()
        second = await document.commit(first)
        assert second is not None
        assert await api.there.optimistic("x").version() == second

    @pytest.mark.req("R42")
    async def test_what_is_wrong_with_a_commit(self, api: Api) -> None:
        if not api.capabilities.cells:
            with pytest.raises(Unsupported, match="keeps values"):
                api.here.optimistic("x")
            return
        for wrong in (-1, True, 1.0, "1", None):
            with pytest.raises(Misconfigured):
                await api.here.optimistic("x").commit(wrong)  # type: ignore[arg-type]
