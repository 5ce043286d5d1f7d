"""zk://: Ctrl-C at every line of acquire and release, also while a session is begun (law 4)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import holdfast
from tests.faults.interrupt import (
    LONG,
    STORED,
    Work,
    at_every_line,
    at_random_moments,
    busy_try,
    fixed_entered_twice,
    handed_over,
    interrupted,
    lines,
    nothing_is_left,
    plain_with,
)
from tests.faults.zookeeper import wires
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

WORKS: list[Work] = [plain_with, busy_try, handed_over, fixed_entered_twice]


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer) -> str:
    return f"zk://{HOST}:{zookeeper_server.port}/interrupt-{uuid.uuid4().hex}"


@pytest.fixture
def clients(url: str) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        yield locks, other


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_interrupt_at_every_line(
    work: Work, clients: tuple[holdfast.Locks, holdfast.Locks]
) -> None:
    at_every_line(work, *clients, STORED)


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
def test_interrupt_at_every_line_of_a_first_acquire(url: str) -> None:
    """The session is begun, and its thread: neither is forgotten, wherever it strikes."""
    before = wires()
    with holdfast.connect(url) as other:
        with other.lock("x", ttl=LONG):
            before |= wires()
        for n in lines(STORED):
            with holdfast.connect(url) as locks:
                where = interrupted(lambda: plain_with(locks, other), n)
                nothing_is_left(locks, other, where)

            until(lambda: not wires() - before, f"the session's thread ends after {where}", 12)
            if not where:
                break


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")
def test_real_signals(clients: tuple[holdfast.Locks, holdfast.Locks]) -> None:
    at_random_moments(*clients)
