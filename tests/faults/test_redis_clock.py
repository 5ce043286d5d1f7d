"""redis://: the server's wall clock is set, forward and back.

Leases end there by that clock, so one that is set forward ends them early: the overlap is
documented (docs/backends/redis.md), and shown here; tokens order the two. One that is set back
takes nothing from anybody who lives, and tokens go on increasing as long as the lock is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from tests.faults.redis import SOON, fresh, in_line, waiting
from tests.servers import RedisServer
from tests.servers.clock import WallClock

pytestmark = [pytest.mark.servers, pytest.mark.req("server clock")]

HOUR = 3600.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(own_clock=True) as server:
        yield server


@pytest.fixture
def clock(server: RedisServer) -> WallClock:
    assert server.clock is not None
    return server.clock


def seconds(server: RedisServer) -> int:
    said = server.call("TIME")
    assert isinstance(said, list)
    return int(str(said[0]))


def test_the_clock_can_be_set(server: RedisServer, clock: WallClock) -> None:
    before = seconds(server)
    clock.shift = HOUR
    assert HOUR <= seconds(server) - before < HOUR + SOON
    clock.shift = -HOUR
    assert -HOUR <= seconds(server) - before < -HOUR + SOON


def test_forward_it_ends_a_lease_early_and_the_token_tells(
    server: RedisServer, clock: WallClock
) -> None:
    url = fresh(server.url)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        first = here.lock("x", ttl=60, renew=18).acquire()
        assert first is not None
        with waiting(there.lock("x", ttl=60)) as waiter:
            in_line(there, 1)
            clock.shift = HOUR
            second = waiter.result()
        assert second is not None
        # The overlap: the first has not heard of it yet.
        assert [lease.held for lease in (first, second)] == [True, True]
        assert second.fence > first.fence
        with pytest.raises(holdfast.LeaseLost):
            first.renew()
        assert not first.held
        second.release()


@pytest.mark.parametrize("step", [-HOUR, -2.0])
def test_back_it_takes_nothing_and_tokens_increase(
    server: RedisServer, clock: WallClock, step: float
) -> None:
    url = fresh(server.url)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x", ttl=60).acquire()
        assert lease is not None
        fences = [lease.fence]
        with waiting(there.lock("x")) as waiter:
            in_line(there, 1)
            clock.shift = step
            lease.renew()
            assert lease.held
            assert lease.remaining() > 50
            assert lease.release()
            handed_over = waiter.result()
        assert handed_over is not None
        fences.append(handed_over.fence)
        handed_over.release()
        for locks in (here, there, here):  # nobody waits; each finds it free
            with locks.lock("x") as lease:
                fences.append(lease.fence)
        assert fences == sorted(set(fences))
        assert not here.inspect()


@pytest.mark.parametrize("step", [HOUR, 2.0, -2.0, -HOUR])
def test_who_waits_is_served(server: RedisServer, clock: WallClock, step: float) -> None:
    """A call is dated by the server's clock: set while somebody waits, it is confirmed, or dates
    too early; it never leaves anybody waiting."""
    url = fresh(server.url)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x", ttl=2 * HOUR, renew=False).acquire()
        assert lease is not None
        with waiting(there.lock("x")) as waiter:
            in_line(there, 1)
            clock.shift = step
            lease.release()
            handed_over = waiter.result()
        assert handed_over is not None
        assert handed_over.held
        handed_over.renew()
        assert handed_over.release()
