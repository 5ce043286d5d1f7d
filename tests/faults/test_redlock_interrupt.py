"""redlock://: Ctrl-C at every line of acquire and release, and real signals (law 4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import holdfast
from tests.faults import test_interrupt
from tests.faults.redis import fresh
from tests.faults.test_interrupt import (
    Work,
    busy_try,
    fixed_entered_twice,
    interrupted,
    nothing_is_left,
    plain_with,
)
from tests.faults.test_redis_interrupt import impatient_wait
from tests.servers import RedisMasters

pytestmark = pytest.mark.servers

WORKS: list[Work] = [plain_with, busy_try, fixed_entered_twice]


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=3) as masters:
        yield masters


@pytest.fixture
def clients(masters: RedisMasters) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    url = fresh(masters.url, quarantine="off", max_ttl=2000, node_timeout=1)
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        yield locks, other


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_interrupt_at_every_line(
    work: Work, clients: tuple[holdfast.Locks, holdfast.Locks]
) -> None:
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
