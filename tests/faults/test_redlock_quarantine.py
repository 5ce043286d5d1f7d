"""redlock://: a node that restarted inside a lease (R36), and tokens across a loss of memory (B1).

Each test has masters of its own: they are killed. Without quarantine the double grant is shown, so
that the tests of its absence prove something.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Unavailable, aio
from holdfast.backends.redlock.quarantine import Memory
from tests.faults.redis import fresh
from tests.servers import RedisMasters
from tests.waiting import until

pytestmark = pytest.mark.servers

RESTART = "Redlock node restarted inside the lease"
MAX_TTL = 3.0


@pytest.fixture
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=3) as masters:
        yield masters


def url_of(masters: RedisMasters, **options: object) -> str:
    return fresh(masters.url, **{"node_timeout": 0.5, "max_ttl": MAX_TTL, **options})


def held_on(
    masters: RedisMasters, locks: holdfast.Locks, places: list[int], ttl: float
) -> holdfast.Lease:
    """A lease that exactly these nodes vote for."""
    for place, node in enumerate(masters.nodes):
        if place not in places:
            node.pause()
    lease = locks.lock("x", ttl=ttl, renew=False).acquire(timeout=10)
    for node in masters.nodes:
        node.resume()
    assert lease
    return lease


@pytest.mark.req("R36", RESTART)
def test_without_quarantine_a_restarted_node_votes_twice(masters: RedisMasters) -> None:
    """The published criticism, reproduced: two leases at the same time."""
    url = url_of(masters, quarantine="off", max_ttl=60)
    with holdfast.connect(url) as one, holdfast.connect(url) as two:
        lease = held_on(masters, one, [0, 1], 60)
        masters.nodes[1].kill()
        masters.nodes[1].restart()
        other = two.lock("x", ttl=60).acquire(timeout=10)
        assert other
        assert other.held
        assert lease.held
        assert other.fence > lease.fence  # and this tells them apart
        other.release()


@pytest.mark.req("R36", "R1", RESTART)
def test_with_quarantine_it_does_not_count(masters: RedisMasters) -> None:
    max_ttl = 8.0
    url = url_of(masters, max_ttl=max_ttl)
    time.sleep(max_ttl * 1.01 + 2)  # the nodes are new themselves, and uptime is in whole seconds
    with holdfast.connect(url) as one, holdfast.connect(url) as two, holdfast.connect(url) as new:
        two.lock("warm up").locked()
        with two.lock("warm up", ttl=1):
            pass
        lease = held_on(masters, one, [0, 1], max_ttl)
        masters.nodes[1].kill()
        masters.nodes[1].restart()
        for locks in (two, new):  # who knew it before, and who meets it only now
            with pytest.raises((Unavailable, holdfast.AcquireTimeout)):
                locks.lock("x", ttl=max_ttl, timeout=0.5).__enter__()
            assert lease.held
        with pytest.raises(Unavailable, match=r"Quarantined: .*quarantine=off"):
            # Two of three count, and one of those has a vote that is not theirs.
            masters.nodes[0].kill()
            new.lock("y", ttl=max_ttl, timeout=2).__enter__()
        masters.nodes[0].restart()
        until(lambda: not lease.held, "the lease ends", max_ttl + 1)
        successor = two.lock("x", ttl=max_ttl).acquire(timeout=4 * max_ttl)
        assert successor
        assert successor.fence > lease.fence
        successor.release()


@pytest.mark.req("R36", RESTART)
def test_a_cold_start_explains_itself(masters: RedisMasters) -> None:
    async def main() -> str:
        async with aio.connect(fresh(masters.url, request_timeout=3)) as locks:
            with pytest.raises(Unavailable) as told:
                await locks.lock("x").acquire()
            return str(told.value)

    for text in (asyncio.run(main()), _cold(masters)):
        assert "0 of 3 nodes voted for it, and 2 are needed" in text
        assert "less than max_ttl=30 s ago" in text
        assert "quarantine=off" in text
    with holdfast.connect(fresh(masters.url, quarantine="off")) as locks, locks.lock("x"):
        pass


def _cold(masters: RedisMasters) -> str:
    with holdfast.connect(fresh(masters.url, request_timeout=3)) as locks:
        with pytest.raises(Unavailable) as told:
            locks.lock("x").acquire()
        return str(told.value)


@pytest.mark.req("R36", RESTART)
def test_a_node_that_writes_everything_down_is_exempt() -> None:
    """appendonly yes, appendfsync always: it remembers the vote, and counts at once."""
    with RedisMasters(count=3, persist=True, durable=True) as masters:
        url = fresh(masters.url, node_timeout=3)
        with holdfast.connect(url) as one, holdfast.connect(url) as two:
            lease = one.lock("x", ttl=30).acquire(timeout=10)  # a cold start, and nobody waits
            assert lease
            for node in masters.nodes:
                node.kill()
                node.restart()
            assert two.lock("x").acquire(timeout=0.5) is None
            lease.renew()
            assert lease.release() is True
            with two.lock("x", timeout=20):
                pass


@pytest.mark.req("B1", "server restarted without persistence")
def test_tokens_increase_although_all_nodes_forget(masters: RedisMasters) -> None:
    url = url_of(masters, quarantine="off")
    tokens: list[int] = []
    with holdfast.connect(url) as locks:
        for _ in range(3):
            with locks.lock("x", ttl=MAX_TTL, timeout=10) as lease:
                tokens.append(lease.fence)
            masters.restart()
        with locks.lock("x", ttl=MAX_TTL, timeout=10) as lease:
            tokens.append(lease.fence)
    assert tokens == sorted(set(tokens))


@pytest.mark.req("B1")
def test_tokens_increase_though_quorums_differ(masters: RedisMasters) -> None:
    """Each grant has another node missing; any two quorums share one that knows the last token."""
    tokens: list[int] = []
    with holdfast.connect(url_of(masters, quarantine="off")) as locks:
        with locks.lock("x", ttl=MAX_TTL):
            pass
        for turn in range(9):
            masters.nodes[turn % 3].pause()
            with locks.lock("x", ttl=MAX_TTL, timeout=10) as lease:
                tokens.append(lease.fence)
            masters.nodes[turn % 3].resume()
    assert tokens == sorted(set(tokens))


@pytest.mark.req("R36")
def test_quarantine_by_uptime_and_by_first_sight() -> None:
    old, young = Memory(30.0), Memory(30.0)
    assert not old.counts(0.0)  # nobody has met it
    old.met("a", 100.0, False, 1000.0)
    assert old.counts(1000.0)
    young.met("a", 10.0, False, 1000.0)
    assert not young.counts(1020.5)  # uptime is in whole seconds: it may have been 9.1
    assert young.counts(1021.0)
    young.met("a", 5.0, False, 1025.0)  # the same process, whatever its clock says now
    assert young.counts(1025.0)
    old.met("b", 100.0, False, 1100.0)  # it says that it is old, but yesterday it was another
    assert not old.counts(1129.9)
    assert old.counts(1130.0)
    durable = Memory(30.0)
    durable.met("a", 0.0, True, 1000.0)
    assert durable.counts(1000.0)
    late = Memory(30.0)
    late.met("a", 0.0, False, 1000.0)
    late.met("a", 5.0, True, 1005.0)  # it writes everything down by now, and has forgotten before
    assert not late.counts(1005.0)
    late.met("b", 0.0, True, 1010.0)
    assert late.counts(1010.0)
    changed = Memory(30.0)
    changed.met("a", 100.0, False, 1000.0)
    changed.met("b", 0.0, True, 1010.0)  # what the first one knew was not written down
    assert not changed.counts(1010.0)
    off = Memory(0.0)
    off.met("a", 0.0, False, 1000.0)
    assert off.counts(1000.0)
