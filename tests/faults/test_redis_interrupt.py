"""redis://: Ctrl-C at every line of acquire and release, and real signals (law 4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from tests.faults.interrupt import (
    STORED,
    Work,
    at_every_line,
    at_random_moments,
    fixed_entered_twice,
    handed_over,
    plain_with,
)
from tests.faults.redis import fresh
from tests.servers import RedisServer

pytestmark = pytest.mark.servers


WORKS: list[Work] = [plain_with, handed_over, fixed_entered_twice]


@pytest.fixture(params=[0, 30], ids=["plain", "crash_grace"])
def clients(
    redis_server: RedisServer, request: pytest.FixtureRequest
) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    url = fresh(redis_server.url, crash_grace=request.param)
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        yield locks, other


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_interrupt_at_every_line(
    work: Work, clients: tuple[holdfast.Locks, holdfast.Locks]
) -> None:
    """A waiter that nobody called because the listener was interrupted before it began was found
    so: it waited for ever."""
    at_every_line(work, *clients, STORED)


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")
def test_real_signals(clients: tuple[holdfast.Locks, holdfast.Locks]) -> None:
    at_random_moments(*clients)
