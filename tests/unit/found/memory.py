"""A store in memory for each test, and what a test may want to know of it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from tests.waiting import PATIENCE

from holdfast import aio
from holdfast.backends.memory import MemoryBackend, Store
from holdfast.ports.clock import now

numbers = itertools.count()


def url() -> str:
    return f"memory://found{next(numbers)}"


def store_of(client: Any) -> Store:
    backend = client._current.backend
    assert isinstance(backend, MemoryBackend)
    return backend.store


async def renewed(lease: aio.Lease) -> None:
    """Until the keeper has extended it. (It would last for long: a machine that stands still for a
    second loses nothing by that.)"""
    end, before = now() + PATIENCE, lease.remaining()
    while lease.remaining() <= before:
        assert now() < end, "nobody renews it"
        before = lease.remaining()
        await asyncio.sleep(0.005)
