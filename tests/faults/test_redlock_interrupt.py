"""redlock://: Ctrl-C at every line of acquire and release, and real signals (law 4)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

import holdfast
from holdfast.backends.redis.keys import Keys
from tests.faults.interrupt import (
    LONG,
    STORED,
    at_every_line,
    at_random_moments,
    interrupted,
    lines,
    nothing_is_left,
    plain_with,
)
from tests.faults.redis import fresh
from tests.servers import RedisMasters
from tests.waiting import until

pytestmark = pytest.mark.servers

PREFIX = "interrupted"
LOCK = Keys(PREFIX).lock("x")


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=3) as masters:
        yield masters


@pytest.fixture
def clients(masters: RedisMasters) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    url = fresh(masters.url, prefix=PREFIX, quarantine="off", max_ttl=2000, node_timeout=1)
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        yield locks, other
    # Nor a minority's, which others would not notice.
    until(lambda: not any(node.call("EXISTS", LOCK) for node in masters.nodes), "no vote is left")


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
def test_interrupt_at_every_line(clients: tuple[holdfast.Locks, holdfast.Locks]) -> None:
    at_every_line(plain_with, *clients, STORED)


def renew(lease: holdfast.Lease) -> None:
    lease.renew()


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
def test_interrupt_at_every_line_of_a_renewal(
    clients: tuple[holdfast.Locks, holdfast.Locks],
) -> None:
    locks, other = clients
    for n in lines(STORED):
        lease = locks.lock("x", ttl=LONG, renew=False).acquire(timeout=10)
        assert lease
        where = interrupted(partial(renew, lease), n)
        lease.renew()
        assert lease.release() is True
        nothing_is_left(locks, other, where)
        if not where:
            assert n > 30
            return


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
def test_interrupt_at_every_line_of_a_refused_try(
    masters: RedisMasters, clients: tuple[holdfast.Locks, holdfast.Locks]
) -> None:
    """A stranger has two votes, and the third is given back."""

    def refused(locks: holdfast.Locks, other: holdfast.Locks) -> None:
        for node in masters.nodes[:2]:
            node.call("SET", LOCK, "stranger {}", "PX", 60_000)
        try:
            assert locks.lock("x", ttl=LONG).acquire(blocking=False) is None
        finally:
            for node in masters.nodes[:2]:
                node.call("DEL", LOCK)

    at_every_line(refused, *clients, STORED)


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")
def test_real_signals(clients: tuple[holdfast.Locks, holdfast.Locks]) -> None:
    at_random_moments(*clients)
