"""redlock://: what is counted, from when, and what a token rests on. Found by reviews, or missed by
mutants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redlock.letters import COMMIT
from holdfast.backends.url import parse
from holdfast.ports.clock import now
from holdfast.testing import FaultProxy
from tests.faults.redis import Waiter, fresh
from tests.faults.test_redlock_found import OPTIONS, backend_of, url_of
from tests.servers import RedisMasters
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=3) as masters:
        yield masters


@pytest.mark.req("R36", "B1")
def test_a_vote_that_was_given_in_quarantine_does_not_count_later() -> None:
    """A client that was kept from reading it until the quarantine was over counted it; the token
    rests on the clock of a node that has sat it out."""
    max_ttl = 2.0
    with RedisMasters(count=3) as masters:
        proxies = [FaultProxy(("127.0.0.1", node.port), framing="resp") for node in masters.nodes]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        url = fresh(f"redlock://{hosts}", max_ttl=max_ttl, node_timeout=10, request_timeout=20)
        try:
            with holdfast.connect(url) as locks:
                with pytest.raises(Unavailable, match="Quarantined"):
                    locks.lock("x", ttl=max_ttl, timeout=0.3).__enter__()
                members = backend_of(locks)._members
                soon = max_ttl / 2
                until(lambda: all(m.memory.remaining(now()) < soon for m in members), "nearly")
                for proxy in proxies:
                    proxy.hold("to_client")
                assert not any(m.memory.counts(now()) for m in members), "this machine is too slow"
                waiter = Waiter(lambda: locks.lock("y", ttl=max_ttl).acquire(timeout=20))
                until(lambda: all(m.memory.counts(now()) for m in members), "they count", 10)
                over = time.time()
                for proxy in proxies:
                    proxy.release_held()
                lease = waiter.result()
                assert lease
                assert lease.fence >= over * 1e6
                lease.release()
        finally:
            for proxy in proxies:
                proxy.close()


@pytest.mark.req("R34", "law 1")
def test_drift_is_taken_off(masters: RedisMasters) -> None:
    url = url_of(masters, real=3, drift=0.5)
    with holdfast.connect(url) as locks, locks.lock("x", ttl=60) as lease:
        assert 25 < lease.remaining() <= 30
        lease.renew()
        assert 25 < lease.remaining() <= 30


@pytest.mark.req("R34", "law 1")
def test_validity_counts_from_before_the_first_byte(masters: RedisMasters) -> None:
    """Without any drift, which would hide it."""

    def resume() -> None:
        for node in masters.nodes:
            node.resume()

    url = url_of(masters, real=3, drift=0, node_timeout=20, request_timeout=20)
    with holdfast.connect(url) as locks:
        with locks.lock("warm up"):
            pass
        for node in masters.nodes:
            node.pause()
        timer = threading.Timer(3.0, resume)
        timer.start()
        begun = now()
        lease = locks.lock("x", ttl=60, timeout=20).acquire()
        assert lease
        took = now() - begun
        timer.join()
        assert took > 2.5
        assert begun + 60 <= lease.remaining() + now() <= begun + 62
        lease.release()


def voters(masters: RedisMasters, lock: str) -> int:
    return sum(bool(node.call("EXISTS", lock)) for node in masters.nodes)


@pytest.mark.req("B1", "R34")
def test_a_token_is_written_only_where_the_vote_is_still_ours() -> None:
    """The votes end while the token is on its way: then it is no lock, and is asked for again."""
    with RedisMasters(count=3) as masters:
        proxies = [FaultProxy(("127.0.0.1", node.port), framing="resp") for node in masters.nodes]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        url = fresh(f"redlock://{hosts}", **{**OPTIONS, "node_timeout": 10})
        lock = Keys(parse(url).query["prefix"]).lock("x")
        try:
            with holdfast.connect(url) as locks:
                with locks.lock("warm up", timeout=10):
                    pass
                for proxy in proxies:
                    proxy.hold("to_server", matching=lambda frame: COMMIT.head in frame)
                waiter = Waiter(lambda: locks.lock("x", ttl=60).acquire(timeout=20))
                until(lambda: voters(masters, lock) >= 2, "a quorum of votes")
                for node in masters.nodes:
                    node.call("DEL", lock)
                for proxy in proxies:
                    proxy.release_held()
                lease = waiter.result()
                assert lease
                assert voters(masters, lock) >= 2
                lease.release()
        finally:
            for proxy in proxies:
                proxy.close()
