"""zk://: servers that stop, die, expire sessions, refuse; leases are lost in time, or kept.

Over 400 lines: a list of cases, each read by itself, that share one server.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.security import make_digest_acl  # type: ignore[import-untyped]

import holdfast
from holdfast import LeaseLost, Misconfigured, Unavailable
from holdfast.testing import FaultProxy
from tests.faults.peers import Peer
from tests.faults.zookeeper import LONG, end_session, kazoo, nodes, sessions
from tests.servers import ZooKeeperServer
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture
def base() -> str:
    return f"/faults-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def breakable() -> Iterator[ZooKeeperServer]:
    """A server of this module's own: its tests break it."""
    with ZooKeeperServer(tick=100) as server:
        yield server


@pytest.fixture
def url(breakable: ZooKeeperServer, base: str) -> str:
    return f"zk://127.0.0.1:{breakable.port}{base}"


# -- sessions --------------------------------------------------------------------------------------


@pytest.mark.req("R21", "server paused", "ZooKeeper SUSPENDED / LOST")
def test_a_pause_shorter_than_the_session(breakable: ZooKeeperServer, url: str) -> None:
    """Uncertain while nobody answers for too long, and certain again afterwards."""
    with holdfast.connect(url) as locks:
        lease = locks.lock("x", ttl=12).acquire()
        assert lease
        breakable.pause()
        try:
            until(lambda: lease.uncertain, "doubt")
            assert not lease.held
            assert not lease.lost
        finally:
            breakable.resume()
        until(lambda: lease.held, "the lease is held again")
        assert not lease.uncertain
        assert lease.release() is True


@pytest.mark.req("R21", "server paused", "ZooKeeper SUSPENDED / LOST")
def test_a_pause_longer_than_the_session(breakable: ZooKeeperServer, url: str) -> None:
    with holdfast.connect(url, request_timeout=3) as locks:
        leases = [locks.lock(name, ttl=1).acquire() for name in ("x", "y")]
        begun = time.monotonic()
        breakable.pause()
        try:
            for lease in leases:
                assert lease
                assert lease.lost.wait(LONG)
                assert not lease.held
            assert time.monotonic() - begun < 12
            with pytest.raises(Unavailable):
                locks.lock("z").acquire()
        finally:
            breakable.resume()
        for name, lease in zip(("x", "y"), leases, strict=True):
            with locks.lock(name, timeout=LONG) as successor:
                assert lease
                assert successor.fence > lease.fence
            assert lease.release() is False


@pytest.mark.req("ZooKeeper SUSPENDED / LOST", "R2")
def test_the_server_is_killed_and_comes_back(breakable: ZooKeeperServer, url: str) -> None:
    """Its sessions and their nodes come back with it: the lease goes on, the waiter too."""
    with holdfast.connect(url, request_timeout=LONG) as locks:
        lease = locks.lock("x", ttl=20).acquire()
        assert lease
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("x").acquire(timeout=30)))
        waiter.start()
        until(lambda: len(locks.inspect("x")[0].waiters) == 1, "a place in line")
        breakable.kill()
        breakable.start()
        assert lease.renew() > 0
        assert lease.held
        assert not got
        assert lease.release() is True
        waiter.join(LONG)
        assert got[0].fence > lease.fence
        assert got[0].release() is True


@pytest.mark.req("holder killed -9", "ZooKeeper SUSPENDED / LOST")
def test_a_killed_client_comes_back_to_its_old_node(
    breakable: ZooKeeperServer, url: str, base: str
) -> None:
    """The old session's node is still there: it is somebody else's, and in the way till it ends."""
    with Peer(url) as peer, kazoo(breakable.port) as client:
        assert peer.run("bool(held.append(locks.lock('x', ttl=8).acquire()) or held[0].held)")
        peer.kill()
        (old,) = nodes(client, f"{base}/x")
        with holdfast.connect(url) as locks:
            assert locks.lock("x").acquire(blocking=False) is None
            with locks.lock("x", timeout=2 * LONG):
                (new,) = nodes(client, f"{base}/x")
                assert new[:32] != old[:32]


@pytest.mark.req("ZooKeeper SUSPENDED / LOST", "R21", "B2")
def test_a_session_that_somebody_closes(breakable: ZooKeeperServer, url: str, base: str) -> None:
    """By a second connection with the same session: every lease is lost at once, and told."""
    told: list[str] = []
    with holdfast.connect(url) as locks, kazoo(breakable.port) as client:
        leases = [
            locks.lock(name, on_lost=lambda loss: told.append(loss.name)).acquire()
            for name in ("x", "y", "z")
        ]
        shorter = locks.lock("w", ttl=5).acquire()
        assert shorter
        (session,) = [one for one in sessions(locks) if one.key == 45000]
        begun = time.monotonic()
        end_session(breakable.port, session)
        for lease in leases:
            assert lease
            assert lease.lost.wait(LONG)
        assert time.monotonic() - begun < 15  # their time would be half a minute
        until(lambda: sorted(told) == ["x", "y", "z"], "all callbacks")
        assert shorter.held  # another session
        assert nodes(client, f"{base}/x") == []
        with locks.lock("x", timeout=LONG) as again:
            assert again.held
            assert leases[0]
            assert again.fence > leases[0].fence
        for lease in leases:
            assert lease
            assert lease.release() is False
            with pytest.raises(LeaseLost):
                lease.check()


@pytest.mark.req("one-way partition", "ZooKeeper SUSPENDED / LOST", "R21")
@pytest.mark.parametrize("lost", ["both", "to_server", "to_client"])
def test_a_partition_is_noticed_before_the_server_frees_the_node(
    breakable: ZooKeeperServer, base: str, lost: Any
) -> None:
    address = ("127.0.0.1", breakable.port)
    with (
        FaultProxy(address, framing="zookeeper") as proxy,
        kazoo(breakable.port) as client,
        holdfast.connect(f"zk://127.0.0.1:{proxy.port}{base}") as locks,
    ):
        lease = locks.lock("x", ttl=8).acquire()
        assert lease
        # Kept, not lost: TCP loses nothing from the middle of a connection.
        proxy.hold(lost)
        until(lambda: lease.uncertain, "doubt")
        assert nodes(client, f"{base}/x")
        until(lambda: lease.lost.is_set(), "the loss")
        # Nobody else can have it yet: the server keeps it half as long again.
        assert nodes(client, f"{base}/x") or lost == "to_client"
        until(lambda: not nodes(client, f"{base}/x"), "the server ends the session")
        proxy.heal()
        with locks.lock("x", timeout=LONG) as again:
            assert again.held


@pytest.mark.req("R50", "server hangs", "R21")
def test_a_server_that_went_silent_is_left_for_another(
    breakable: ZooKeeperServer, base: str
) -> None:
    """kazoo stays on a connection as long as requests are sent on it, answered or not."""
    address = ("127.0.0.1", breakable.port)
    with (
        FaultProxy(address, framing="zookeeper") as one,
        FaultProxy(address, framing="zookeeper") as two,
        holdfast.connect(
            f"zk://127.0.0.1:{one.port},127.0.0.1:{two.port}{base}", request_timeout=LONG
        ) as locks,
    ):
        lease = locks.lock("x", ttl=15).acquire()
        assert lease
        silent, other = (one, two) if one.connections else (two, one)
        silent.hold("both")
        begun = time.monotonic()
        until(lambda: other.connections, "the other server is used", 15)
        until(lambda: lease.held, "the lease is certain again", begun + 15 - time.monotonic())
        lease.renew()
        time.sleep(max(0.0, begun + 16 - time.monotonic()))
        assert lease.held
        assert lease.release() is True
        with locks.lock("x", timeout=LONG):
            pass


@pytest.mark.req("R50", "wrong credentials")
def test_a_path_that_must_not_be_made(breakable: ZooKeeperServer, base: str) -> None:
    with kazoo(breakable.port) as client:
        client.create(base, b"", acl=[make_digest_acl("alice", "s3cret", all=True)])
        url = f"zk://127.0.0.1:{breakable.port}{base}"
        with holdfast.connect(f"{url}/below") as locks, pytest.raises(Misconfigured, match="ACL"):
            locks.lock("x").acquire()
        with holdfast.connect(url) as locks, pytest.raises(Misconfigured, match="ACL"):
            locks.lock("x").acquire()


@pytest.mark.req("R22", "R50")
def test_a_fixed_lease_longer_than_any_session(base: str) -> None:
    """The server grants no session so long: contacts keep it, and its time ends it."""
    with (
        ZooKeeperServer(tick=100, settings={"maxSessionTimeout": "4500"}) as server,
        holdfast.connect(f"zk://127.0.0.1:{server.port}{base}") as locks,
    ):
        began = time.monotonic()
        lease = locks.lock("x", ttl=9, renew=False).acquire()
        begun = time.monotonic()
        assert lease
        while True:
            held, refused = lease.held, locks.lock("x").acquire(blocking=False) is None
            if time.monotonic() > began + 8.5:
                break
            assert held
            assert refused
            time.sleep(0.1)
        assert lease.lost.wait(LONG)
        assert time.monotonic() - began > 8.8
        assert time.monotonic() - begun < 20
        with locks.lock("x", timeout=LONG):
            pass
        renewed = locks.lock("x", ttl=60).acquire()
        assert renewed
        server.pause()
        try:
            # A third of the session: not certain; two thirds: lost, whatever its ttl.
            until(lambda: renewed.uncertain or renewed.lost.is_set(), "doubt", 12)
            assert renewed.lost.wait(12)
        finally:
            server.resume()


@pytest.mark.req("R22", "R50")
@pytest.mark.parametrize("waits", [False, True])
def test_a_lease_longer_than_any_session_is_kept_by_contacts_from_the_beginning(
    base: str, waits: bool
) -> None:
    """With a ttl of a minute or more the sitter slept on: there was no contact before the first
    renewal, and until then the lease was uncertain, though nothing was wrong."""
    with (
        ZooKeeperServer(tick=100, settings={"maxSessionTimeout": "4500"}) as server,
        holdfast.connect(f"zk://127.0.0.1:{server.port}{base}") as locks,
        holdfast.connect(f"zk://127.0.0.1:{server.port}{base}") as others,
    ):
        before = others.lock("x").acquire() if waits else None
        got: list[Any] = []
        taker = threading.Thread(target=lambda: got.append(locks.lock("x", ttl=300).acquire()))
        taker.start()
        if before is not None:
            until(lambda: len(others.inspect("x")[0].waiters) == 1, "a place in line")
            before.release()
        taker.join(LONG)
        (session,) = sessions(locks)
        first = session.contact
        until(lambda: session.contact > first + session.timeout, "contacts")
        until(lambda: got[0].held, "it is held")
        assert not got[0].lost.is_set()
        assert got[0].release() is True


@pytest.mark.req("client paused longer than its lease", "ZooKeeper SUSPENDED / LOST")
def test_a_paused_client_with_a_lease_longer_than_its_session(base: str) -> None:
    """At its first look, before any of its threads had a chance to notice."""
    with ZooKeeperServer(tick=100, settings={"maxSessionTimeout": "4500"}) as server:
        url = f"zk://127.0.0.1:{server.port}{base}"
        with Peer(url) as peer, holdfast.connect(url) as locks:
            peer.run("held.append(locks.lock('x', ttl=60, renew=False).acquire())")
            assert peer.run("held[0].held")
            peer.signal(signal.SIGSTOP)
            with locks.lock("x", timeout=LONG):
                peer.start("held[0].held")
                peer.signal(signal.SIGCONT)
                assert peer.result() is False


# -- waiters ---------------------------------------------------------------------------------------


@pytest.mark.req("KeyboardInterrupt", "R50")
def test_ctrl_c_in_a_waiter_leaves_no_node(breakable: ZooKeeperServer, url: str, base: str) -> None:
    """kazoo's own lock leaves one that blocks everybody, as long as the process lives."""
    with Peer(url) as peer, holdfast.connect(url) as locks, kazoo(breakable.port) as client:
        lease = locks.lock("x").acquire()
        assert lease
        for _ in range(10):
            peer.start("locks.lock('x').acquire()")
            until(lambda: len(nodes(client, f"{base}/x")) == 2, "a place in line")
            peer.signal(signal.SIGINT)
            with pytest.raises(Exception, match="KeyboardInterrupt"):
                peer.result()
            until(lambda: len(nodes(client, f"{base}/x")) == 1, "the waiter's node is gone")
        assert lease.release() is True
        until(lambda: not nodes(client, f"{base}/x"), "nothing is left")


@pytest.mark.req("reply lost, command applied", "R50")
def test_a_connection_cut_at_each_of_its_replies(breakable: ZooKeeperServer, base: str) -> None:
    """Create, list, sync, look: whichever is lost, the claim has one node and finds it."""
    address = ("127.0.0.1", breakable.port)
    with (
        FaultProxy(address, framing="zookeeper") as proxy,
        kazoo(breakable.port) as client,
        holdfast.connect(f"zk://127.0.0.1:{proxy.port}{base}") as locks,
    ):
        for cut in range(1, 7):
            for before in (0, 12):
                proxy.reset_on_reply(cut, after=before)
                for _ in range(3):
                    with locks.lock("x", timeout=LONG) as lease:
                        assert lease.held
                        assert len(nodes(client, f"{base}/x")) == 1
                proxy.heal()
        until(lambda: not nodes(client, f"{base}/x"), "nothing is left")


@pytest.mark.req("R50", "R2")
def test_nothing_is_left_of_a_lock(breakable: ZooKeeperServer, url: str, base: str) -> None:
    """Neither its claims nor, after a while, its own node; and it can be taken at any moment."""
    with holdfast.connect(url) as locks, kazoo(breakable.port) as client:
        for _ in range(20):
            with locks.lock("x", timeout=LONG):
                pass
            time.sleep(0.11)
        until(lambda: not nodes(client, base), "the lock's node is removed")
        with locks.lock("x", timeout=LONG):
            assert len(nodes(client, f"{base}/x")) == 1


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.req("R50")
def test_a_quota_is_said(base: str) -> None:
    settings = {"enforceQuota": "true"}
    with ZooKeeperServer(tick=100, settings=settings) as server, kazoo(server.port) as client:
        client.ensure_path(f"{base}/x")
        client.ensure_path(f"/zookeeper/quota{base}")
        limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2"
        client.create(f"/zookeeper/quota{base}/zookeeper_limits", limits)
        client.create(f"/zookeeper/quota{base}/zookeeper_stats", b"count=2,bytes=0")
        url = f"zk://127.0.0.1:{server.port}{base}"
        with holdfast.connect(url, request_timeout=3) as locks:
            with pytest.raises(Unavailable, match="quota"):
                locks.lock("x").acquire()
            client.delete(f"/zookeeper/quota{base}/zookeeper_limits")
            with locks.lock("x", timeout=LONG):
                pass


@pytest.mark.req("wrong credentials", "R50")
def test_acls_let_only_the_creator_take_and_evict(breakable: ZooKeeperServer, base: str) -> None:
    server = f"127.0.0.1:{breakable.port}{base}"
    with (
        holdfast.connect(f"zk://alice:s3cret-a@{server}") as alice,
        holdfast.connect(f"zk://alice:s3cret-a@{server}") as also_alice,
        holdfast.connect(f"zk://bob:s3cret-b@{server}", request_timeout=30) as bob,
        holdfast.connect(f"zk://{server}", request_timeout=30) as nobody,
    ):
        with alice.lock("x") as lease:
            assert also_alice.lock("x").acquire(blocking=False) is None
            for stranger in (bob, nobody):
                assert len(stranger.inspect("x")[0].holders) == 1
                with pytest.raises(Misconfigured, match="ACL") as refused:
                    stranger.evict("x")
                assert "s3cret" not in str(refused.value)
                begun = time.monotonic()
                with pytest.raises(Misconfigured, match="ACL") as refused:
                    stranger.lock("x").acquire()
                assert time.monotonic() - begun < 12
                assert "s3cret" not in str(refused.value)
            assert lease.held
        with pytest.raises(LeaseLost), also_alice.lock("x", timeout=LONG):
            assert alice.evict("x") == 1


@pytest.mark.req("wrong credentials", "law 9")
def test_no_secret_in_logs(
    breakable: ZooKeeperServer, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    url = f"zk://alice:s3cret-a@127.0.0.1:{breakable.port}{base}"
    with holdfast.connect(url, label="s") as locks, locks.lock("x"):
        assert "s3cret" not in repr(locks)
    assert "s3cret" not in caplog.text
