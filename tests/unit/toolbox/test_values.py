"""What somebody else has written under a tool's name is refused, by an error that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.ports.thread import drive

TOOLS: dict[str, tuple[str, Callable[[holdfast.Locks], Any]]] = {
    "latch": ("latch:x", lambda locks: locks.latch("x", 3).count()),
    "barrier": ("barrier:x", lambda locks: locks.barrier("x", 3).waiting()),
    "once": ("once-kept:x", lambda locks: locks.once("x", 60, lambda: 1).get()),
    "election": ("election:x", lambda locks: locks.election("x").leader()),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("value", [b"", b"garbage", b"\xff\xfe", b"null"])
def test_a_value_of_somebody_else_is_refused(
    locks: holdfast.Locks, tool: str, value: bytes
) -> None:
    cell, use = TOOLS[tool]
    use(locks)
    engine = locks._engine()
    for name in (cell, "once-fresh:x"):
        drive(
            engine.backend.cell_write(
                name, value, expect=None, fence=None, ttl=None, deadline=engine.port.now() + 5
            )
        )
    with (
        locks.lock("election:x"),
        pytest.raises(holdfast.Misconfigured, match="x' was not written"),
    ):
        use(locks)
