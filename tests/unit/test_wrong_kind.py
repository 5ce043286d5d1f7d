"""What belongs to the other client, to a client, or nowhere, is refused in words that lead there."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Locks, Misconfigured, aio


@pytest.fixture
def locks() -> Iterator[Locks]:
    with holdfast.connect("memory://wrong-kind") as client:
        yield client


class Callback:
    async def __call__(self, error: Any) -> None: ...

    async def method(self, error: Any) -> None: ...


@pytest.mark.parametrize(
    "callback", [Callback(), Callback().method, functools.partial(Callback.method, Callback())]
)
def test_a_coroutine_function_where_nobody_would_await_it(locks: Locks, callback: Any) -> None:
    """It was called, and its coroutine thrown away."""
    aiming = r"holdfast\.aio\.connect"
    with pytest.raises(Misconfigured, match=aiming):
        locks.lock("x", on_lost=callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.election("x", on_lost=callback)
    with locks.lock("x") as lease, pytest.raises(Misconfigured, match=aiming):
        lease.on_lost(callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.election("x").run_when_leader(callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.once("x", 1.0, callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.locked("x")(callback)
    assert locks.inspect() == []


def test_a_plain_function_where_it_would_be_awaited() -> None:
    async def main() -> None:
        async with aio.connect("memory://wrong-kind") as locks:
            with pytest.raises(Misconfigured, match=r"holdfast\.connect"):
                await locks.election("x").run_when_leader(lambda leadership: 5)  # type: ignore[arg-type, return-value]
            assert await locks.inspect() == []

    asyncio.run(main())
