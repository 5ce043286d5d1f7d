"""Looking into a store that is not there yet: nothing is found, and nothing is made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import aio


@pytest.mark.req("B7")
def test_looking_makes_no_store(tmp_path: Path) -> None:
    """A typo read as "nobody holds a lock", and left folders, a file and a pipe behind."""
    path = tmp_path / "nowhere" / "locks.db"
    with holdfast.connect(f"sqlite://{path}") as locks:
        assert not locks.exists()
        assert locks.inspect() == []
        assert not locks.lock("x").locked()
        assert locks.evict("x") == 0
        assert list(tmp_path.iterdir()) == []
        with locks.lock("x"):
            assert locks.exists()
            assert [info.name for info in locks.inspect()] == ["x"]
            with holdfast.connect(f"sqlite://{path}") as other:
                assert other.exists()
                assert other.lock("x").locked()


@pytest.mark.req("B7")
def test_looking_makes_no_store_with_asyncio(tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.connect(f"sqlite://{tmp_path}/nowhere/locks.db") as locks:
            assert not locks.exists()
            assert await locks.inspect() == []
            assert not await locks.lock("x").locked()
            assert await locks.evict("x") == 0
            assert list(tmp_path.iterdir()) == []
            async with locks.lock("x"):
                assert locks.exists()
                assert await locks.lock("x").locked()

    asyncio.run(work())


def test_other_stores_are_there_already() -> None:
    with holdfast.connect("memory://exists") as locks:
        assert locks.exists()
    assert holdfast.connect("redis://127.0.0.1:1").exists()
