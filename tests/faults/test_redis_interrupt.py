"""redis://: Ctrl-C at every line of acquire and release, and real signals (law 4)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

import holdfast
from tests.faults import test_interrupt
from tests.faults.redis import fresh
from tests.faults.test_interrupt import (
    Work,
    fixed_entered_twice,
    handed_over,
    interrupted,
    nothing_is_left,
    plain_with,
    timed_out_wait,
)
from tests.servers import RedisServer

pytestmark = pytest.mark.servers


def impatient_wait(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    """2 ms may be too short for a server to say that it is busy."""
    with contextlib.suppress(holdfast.Unavailable):
        timed_out_wait(locks, other)


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
    for n in itertools.count(1):
        where = interrupted(lambda: work(*clients), n)
        nothing_is_left(*clients, where)
        if not where:
            assert n > 30, "the tracer saw too little"
            return


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")
def test_real_signals(
    clients: tuple[holdfast.Locks, holdfast.Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_interrupt, "timed_out_wait", impatient_wait)
    test_interrupt.test_real_signals_at_random_moments(clients)
