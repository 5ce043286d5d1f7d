"""redis://: Ctrl-C at every line of acquire and release, and real signals (law 4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import holdfast
from tests.faults.redis import fresh
from tests.faults.test_interrupt import (
    WORKS,
    Work,
    interrupted,
    nothing_is_left,
    test_real_signals_at_random_moments,
)
from tests.servers import RedisServer

__all__ = ["test_real_signals_at_random_moments"]

pytestmark = pytest.mark.servers


@pytest.fixture
def clients(redis_server: RedisServer) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    url = fresh(redis_server.url)
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        yield locks, other


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_interrupt_at_every_line(
    work: Work, clients: tuple[holdfast.Locks, holdfast.Locks]
) -> None:
    """A waiter that nobody called because the listener was interrupted before it began was found
    so: it waited for ever."""
    for n in itertools.count(1):
        where = interrupted(lambda: work(*clients), n)
        nothing_is_left(*clients, where)
        if not where:
            assert n > 30, "the tracer saw too little"
            return
