"""redis://: processes that are stopped, killed, interrupted or forked while they hold or wait."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.ports.clock import now
from tests.faults.peers import Peer, PeerError
from tests.faults.redis import fresh, in_line, waiting
from tests.faults.test_processes import renewed
from tests.servers import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.servers

LONG = 60.0
WINDOW, HEARTBEAT = 1.0, 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> str:
    return fresh(server.url, window=WINDOW, heartbeat=HEARTBEAT)


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


def all_listen(server: RedisServer, count: int) -> None:
    until(
        lambda: str(server.call("CLIENT", "LIST", "TYPE", "pubsub")).count("id=") >= count,
        f"{count} listen",
    )


def stand_in_line(locks: holdfast.Locks, *peers: Peer, ttl: float = LONG) -> None:
    for count, peer in enumerate(peers, 1):
        peer.wait_for(f"lock('x', ttl={ttl})")
        in_line(locks, count)


@pytest.mark.req("client paused longer than its lease", "B1", "R2")
def test_a_holder_is_stopped_for_longer_than_its_lease(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as peer:
        peer.acquire("lock('x', ttl=3)")
        fence = peer.run("held[0].fence")
        peer.signal(signal.SIGSTOP)
        begun = now()
        lease = locks.lock("x", ttl=LONG).acquire(timeout=20)
        assert lease
        assert now() - begun < 15  # at its end: nobody is called, so who waits looks
        peer.signal(signal.SIGCONT)
        assert peer.run("held[0].held") is False
        assert peer.run("held[0].release()") is False
        assert lease.fence is not None
        assert lease.fence > fence
        assert lease.held
        lease.renew()
        assert lease.release() is True


@pytest.mark.req("key expires while waiters queue", "holder killed -9", "R2")
def test_a_killed_holders_lease_ends_with_a_line_behind_it(server: RedisServer) -> None:
    """It is looked at then, and not at a heartbeat."""
    url = fresh(server.url, window=60, heartbeat=20)
    with holdfast.connect(url) as locks, Peer(url) as peer, Peer(url) as second:
        peer.acquire("lock('x', ttl=6, renew=False)")
        ends = now() + peer.run("held[0].remaining()")
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            in_line(locks, 1)
            second.wait_for(f"lock('x', ttl={LONG})")
            peer.kill()
            lease = waiter.result()
            assert lease
            assert -0.1 < waiter.at - ends < 8
            lease.release()
            assert second.result() is True


@pytest.mark.req("waiter paused, then granted", "law 1")
@pytest.mark.parametrize("stopped_for_too_long", [False, True])
def test_a_waiter_is_stopped_granted_and_resumed(
    server: RedisServer, stopped_for_too_long: bool
) -> None:
    """Within the claim window it has the lock; beyond it, somebody else does, and it knows."""
    window = WINDOW if stopped_for_too_long else 5.0  # longer than this machine stands still
    url = fresh(server.url, window=window, heartbeat=HEARTBEAT)
    with holdfast.connect(url) as locks, Peer(url) as peer:
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        stand_in_line(locks, peer)
        peer.signal(signal.SIGSTOP)
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            in_line(locks, 2)
            lease.release()
            if stopped_for_too_long:
                until(lambda: waiter.done, "somebody else has it")
            else:
                time.sleep(0.3)
                assert not waiter.done
            peer.signal(signal.SIGCONT)
            if stopped_for_too_long:
                mine = waiter.result()
                assert mine
                time.sleep(0.3)  # time enough to believe in an old call
                assert mine.held
                mine.renew()
                assert mine.release() is True
                assert peer.result() is True
                assert peer.run("held[-1].fence") > mine.fence
                peer.run("held[-1].release()")
            else:
                assert peer.result() is True
                time.sleep(1.2 * window)  # it has claimed it: the window is over, and it holds
                assert peer.run("held[-1].held") is True
                assert not waiter.done
                assert peer.run("held[-1].release()") is True
                assert waiter.result()
                waiter.lease.release()


@pytest.mark.req("waiter killed", "several dead waiters in a row", "R2")
def test_killed_waiters_cost_nothing(server: RedisServer) -> None:
    """Their connections are gone, so PUBLISH reaches nobody and the next one is called."""
    url = fresh(server.url, window=30, heartbeat=15)
    locks = holdfast.connect(url)
    lease = locks.lock("x", ttl=LONG).acquire()
    assert lease
    peers = [Peer(url) for _ in range(4)]
    try:
        stand_in_line(locks, *peers)
        with holdfast.connect(url) as there, waiting(there.lock("x", ttl=LONG)) as waiter:
            in_line(locks, 5)
            all_listen(server, 5)
            for peer in peers:
                peer.kill()
            begun = now()
            lease.release()
            assert waiter.result()
            cost = waiter.at - begun
            waiter.lease.release()
        assert cost < 10, f"{cost:.3f} s for 4 dead waiters"
    finally:
        locks.close()
        for peer in peers:
            peer.__exit__()


@pytest.mark.req("waiter killed", "several dead waiters in a row", "R2")
def test_stopped_waiters_cost_one_claim_window_together(server: RedisServer) -> None:
    """They have connections, and take calls; but not one window each."""
    window = 4.0
    url = fresh(server.url, window=window, heartbeat=HEARTBEAT)
    locks = holdfast.connect(url)
    lease = locks.lock("x", ttl=LONG).acquire()
    assert lease
    peers = [Peer(url) for _ in range(4)]
    try:
        stand_in_line(locks, *peers)
        with holdfast.connect(url) as there, waiting(there.lock("x", ttl=LONG)) as waiter:
            in_line(locks, 5)
            all_listen(server, 5)
            for peer in peers:
                peer.signal(signal.SIGSTOP)
            begun = now()
            lease.release()
            assert waiter.result()
            cost = waiter.at - begun
            waiter.lease.release()
        assert cost < 3 * window, f"{cost:.3f} s for 4 stopped waiters"
    finally:
        locks.close()
        for peer in peers:
            peer.__exit__()


@pytest.mark.req("waiter killed at the moment it is granted", "R2")
def test_a_waiter_is_killed_at_the_moment_it_is_granted(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as first, Peer(url) as second:
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        stand_in_line(locks, first, second)
        first.signal(signal.SIGSTOP)  # it cannot answer, and is dead soon
        begun = now()
        assert lease.release()
        first.kill()
        assert second.result() is True
        assert now() - begun < 12  # far less than its ttl


@pytest.mark.req("head writer withdraws in front of readers", "KeyboardInterrupt", "R10")
def test_a_head_writer_is_interrupted_in_front_of_readers(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as writer, Peer(url) as reader:
        mine = locks.rwlock("x", ttl=LONG).read().acquire()
        assert mine
        writer.wait_for(f"rwlock('x', ttl={LONG}).write()")
        in_line(locks, 1)
        reader.wait_for(f"rwlock('x', ttl={LONG}).read()")
        in_line(locks, 2)
        begun = now()
        writer.signal(signal.SIGINT)
        with pytest.raises(PeerError, match="KeyboardInterrupt"):
            writer.result()
        assert reader.result() is True
        assert now() - begun < 15
        mine.release()


@pytest.mark.req("KeyboardInterrupt", "law 4")
def test_an_interrupted_holder_gives_back(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as peer:
        peer.start(f"with locks.lock('x', ttl={LONG}): time.sleep(60)")
        until(locks.inspect, "it holds")
        begun = now()
        peer.signal(signal.SIGINT)
        with pytest.raises(PeerError, match="KeyboardInterrupt"):
            peer.result()
        lease = locks.lock("x").acquire(timeout=5)
        assert lease
        assert now() - begun < 15
        lease.release()


@pytest.mark.req("interpreter exits holding a lock")
def test_an_interpreter_that_exits_gives_back(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as peer:
        peer.acquire(f"lock('x', ttl={LONG})")
        begun = now()
        peer.start("sys.exit")  # the next line ends its input
        assert peer._process.stdin is not None
        peer._process.stdin.close()
        lease = locks.lock("x").acquire(timeout=20)
        assert lease
        assert now() - begun < 20
        lease.release()
        peer._process.wait(30)


@pytest.mark.req("fork after acquire", "law 8", "B3")
def test_a_fork_beside_waiters_and_renewals_disturbs_nobody(server: RedisServer) -> None:
    """The child has copies of the parent's sockets: it must not say a word on them."""
    url = fresh(server.url, window=30, heartbeat=15)
    with holdfast.connect(url) as locks, holdfast.connect(url) as there:
        lease = locks.lock("x", ttl=LONG, renew=0.3).acquire()
        held = there.lock("y", ttl=LONG).acquire()
        assert lease
        assert held
        with waiting(locks.lock("y", ttl=LONG)) as waiter:
            in_line(locks, 1, "y")
            all_listen(server, 1)
            for _ in range(5):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
                if not pid:
                    status = 1
                    try:
                        signal.alarm(30)
                        assert not lease.held
                        assert lease.release() is False
                        for n in range(3):
                            with locks.lock(f"child {n}", timeout=5) as own:
                                assert own.held
                        assert locks.lock("x").acquire(blocking=False) is None
                        locks.close()
                        status = 0
                    finally:
                        os._exit(status)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                with locks.lock("parent", timeout=5):
                    pass
            assert lease.held
            renewed(lease)
            begun = now()
            held.release()
            assert waiter.result()
            assert waiter.at - begun < 10  # it was called
            waiter.lease.release()
        assert lease.release() is True
