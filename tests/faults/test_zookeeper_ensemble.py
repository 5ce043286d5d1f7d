"""zk:// and three servers: the leader dies, a follower is cut off, one is left alone and reads."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.testing import FaultProxy
from tests.faults.crash import Pulse
from tests.faults.zookeeper import LONG, Raw, kazoo, nodes
from tests.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture
def base() -> str:
    return f"/ensemble-{uuid.uuid4().hex}"


@pytest.mark.req("R50", "R21", "failover with the lock unreplicated")
def test_the_leader_dies_and_the_lease_goes_on(base: str) -> None:
    with ZooKeeperEnsemble() as servers:
        leader = servers.wait_leader()
        hosts = ",".join(f"{host}:{port}" for host, port in servers.addresses)
        with holdfast.connect(f"zk://{hosts}{base}", request_timeout=LONG) as locks:
            lease = locks.lock("x", ttl=20).acquire()
            assert lease
            got: list[Any] = []
            waiter = threading.Thread(
                target=lambda: got.append(locks.lock("x").acquire(timeout=2 * LONG))
            )
            waiter.start()
            until(lambda: len(locks.inspect("x")[0].waiters) == 1, "a place in line")
            leader.kill()
            servers.wait_leader(other_than=leader)
            assert lease.renew() > 0
            assert lease.held
            assert not got
            assert lease.release() is True
            waiter.join(2 * LONG)
            assert got[0].fence > lease.fence
            assert got[0].release() is True
            follower = next(node for node in servers.nodes if node.alive)
            with kazoo(follower.port) as client:
                until(lambda: not nodes(client, f"{base}/x"), "nothing is left")


class Severable(ZooKeeperEnsemble):
    """Each server reaches the others through a proxy of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ways: dict[tuple[int, int], FaultProxy] = {}
        for here, node in enumerate(self.nodes):
            node.__class__ = _Member
            for there, other in enumerate(self.nodes):
                if other is not node:
                    self.ways[here, there] = FaultProxy((HOST, other.quorum_port))
        for here, node in enumerate(self.nodes):
            assert isinstance(node, _Member)
            node.ways = {there: way for (one, there), way in self.ways.items() if one == here}

    def stop(self) -> None:
        for way in self.ways.values():
            way.heal()
        super().stop()
        for way in self.ways.values():
            way.close()


class _Member(ZooKeeperServer):
    ways: dict[int, FaultProxy]

    def configure(self) -> None:
        super().configure()
        path = self.directory / "zoo.cfg"
        text = path.read_text()
        for there, way in self.ways.items():
            other = self.members[there]
            text = text.replace(
                f"{HOST}:{other.quorum_port}:{other.election_port}",
                f"{HOST}:{way.port}:{other.election_port}",
            )
        path.write_text(text)


@pytest.fixture(scope="module")
def severable() -> Iterator[Severable]:
    # A follower notices a silent leader after sync_limit ticks: late, so that it goes on answering
    # pings and reads while the leader ends the sessions of its clients.
    with Severable(tick=200, sync_limit=60) as servers:
        servers.wait_leader()
        yield servers


@pytest.mark.req("ZooKeeper follower cut off", "R21")
@pytest.mark.parametrize("renew", [True, False])
def test_a_follower_is_cut_off_from_its_leader(
    severable: Severable, base: str, renew: bool
) -> None:
    """The client is connected, its pings and reads are answered; and the leader frees its node.
    The holder must be uncertain, and then know that it has lost the lease, before that."""
    leader = severable.wait_leader()
    follower = next(node for node in severable.nodes if node is not leader)
    way = severable.ways[severable.nodes.index(follower), severable.nodes.index(leader)]
    url = f"zk://{HOST}:{follower.port}{base}"
    freed: list[float] = []
    with (
        holdfast.connect(url) as locks,
        kazoo(leader.port) as at_the_leader,
        kazoo(follower.port, timeout=30) as at_the_follower,
        Pulse() as pulse,
        contextlib.ExitStack() as faults,
    ):
        lease = locks.lock("x", ttl=5, renew=renew).acquire()
        assert lease
        path = f"{base}/x/{nodes(at_the_follower, f'{base}/x')[0]}"
        time.sleep(1.2)  # some pings

        @at_the_leader.DataWatch(path)  # type: ignore[untyped-decorator]
        def gone(data: bytes | None, stat: Any) -> None:
            if stat is None and not freed:
                freed.append(time.monotonic())

        faults.callback(way.heal)
        way.hold("both")
        lost: list[float] = []
        doubted: list[float] = []
        answered = 0.0
        while not freed or not lost:
            now, before, held = time.monotonic(), bool(doubted or lost), lease.held
            if lease.uncertain and not doubted:
                doubted.append(now)
            if lease.lost.is_set() and not lost:
                lost.append(now)
            assert not (held and before), "held again"
            assert held or doubted or lost
            if at_the_follower.connected and at_the_follower.exists(path):  # a read
                answered = time.monotonic()
            time.sleep(0.01)
        assert lost[0] < freed[0] + pulse.worst, (
            "the leader had freed the node before the holder knew"
        )
        if renew:
            assert doubted
            assert doubted[0] < lost[0]
        assert answered > freed[0] - 0.1 - pulse.worst, (
            "the follower did not go on answering: nothing was shown"
        )
        print(f"lost {freed[0] - lost[0]:.2f} s before it was freed")
        faults.close()
        with locks.lock("x", timeout=2 * LONG) as again:
            assert again.fence > lease.fence


@pytest.mark.req("R50", "ZooKeeper follower cut off")
def test_a_follower_that_lags_behind_does_not_tell_old_cells(
    severable: Severable, base: str
) -> None:
    """Whoever reads a cell after somebody has written it sees that, or nothing at all."""
    leader = severable.wait_leader()
    follower = next(node for node in severable.nodes if node is not leader)
    way = severable.ways[severable.nodes.index(follower), severable.nodes.index(leader)]
    with (
        Raw(f"zk://{HOST}:{leader.port}{base}") as here,
        Raw(f"zk://{HOST}:{follower.port}{base}") as there,
        contextlib.ExitStack() as faults,
    ):
        old = here.write("x", b"old")
        assert there.read("x", LONG) == old
        faults.callback(way.heal)
        way.hold("both")
        new = here.write("x", b"new")
        with pytest.raises(Unavailable):
            there.read("x", 1.0)
        faults.close()
        assert there.read("x", 2 * LONG) == new


@pytest.mark.req("R50", "R7")
def test_a_server_that_only_reads_is_not_used(base: str) -> None:
    with ZooKeeperEnsemble(properties={"readonlymode.enabled": "true"}) as servers:
        servers.wait_leader()
        left, *others = servers.nodes
        with holdfast.connect(f"zk://{HOST}:{left.port}{base}", request_timeout=5) as locks:
            lease = locks.lock("x", ttl=3).acquire()
            assert lease
            for server in others:
                server.kill()
            until(lambda: "read-only" in left.command_of_four("srvr"), "the last one only reads")
            assert lease.lost.wait(LONG)
            begun = time.monotonic()
            with pytest.raises(Unavailable):
                locks.lock("y").acquire()
            assert time.monotonic() - begun < 15
            for server in others:
                server.start()
            with locks.lock("x", timeout=2 * LONG) as again:
                assert again.fence > lease.fence
