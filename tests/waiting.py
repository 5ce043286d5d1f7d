"""Waiting in tests, for what no event tells: until something is so, until nothing happens."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 25.0
"""More than anything takes on a busy machine, less than the default lease lasts: nothing that a
test waits for may come about because a lease ran out."""
LOOK = 0.003


def until(happened: Callable[[], T | None], what: str = "it", patience: float = PATIENCE) -> T:
    """The first true value."""
    end = time.monotonic() + patience
    while not (value := happened()):
        assert time.monotonic() < end, f"{what}: not within {patience:g} s"
        time.sleep(LOOK)
    return value


def settled(count: Callable[[], int], still: float = 0.3) -> int:
    """The count when it has not grown for a while: what was under way has arrived."""
    end = time.monotonic() + PATIENCE
    last, since = count(), time.monotonic()
    while time.monotonic() - since < still:
        assert time.monotonic() < end, f"it never stood still for {still:g} s"
        time.sleep(LOOK)
        if (now := count()) != last:
            last, since = now, time.monotonic()
    return last


def readable(file: Any) -> bool:
    """Whether there is something to read now. Not by `select`: who has run many tests may have many
    files."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))
