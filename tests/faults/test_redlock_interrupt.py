"""redlock://: Ctrl-C at every line of acquire and release, and real signals (law 4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from tests.faults.interrupt import (
    Work,
    at_every_line,
    at_random_moments,
    busy_try,
    fixed_entered_twice,
    plain_with,
)
from tests.faults.redis import fresh
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
    at_every_line(work, *clients)


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")
def test_real_signals(clients: tuple[holdfast.Locks, holdfast.Locks]) -> None:
    at_random_moments(*clients)
