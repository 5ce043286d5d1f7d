"""etcd breaks: leaders, endpoints, disks, leases and revisions (faults.md), on real members.

Over 400 lines: a list of cases, each read by itself, that share their members.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import LeaseLost, Unavailable, aio
from holdfast.testing import FaultProxy
from tests.conformance.etcd import b64
from tests.faults.etcd import etcdctl
from tests.faults.test_processes import in_child
from tests.servers import EtcdCluster, EtcdServer
from tests.waiting import settled, until

pytestmark = pytest.mark.servers

TTL = 6.0
LONG = 60.0


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        cluster.wait_leader()
        yield cluster


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
def proxy(server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy:
        yield proxy


def via(proxy: FaultProxy) -> str:
    return f"etcd://{proxy.host}:{proxy.port}"


class Waiting(threading.Thread):
    def __init__(self, lock: holdfast.Lock, timeout: float = 40) -> None:
        super().__init__()
        self._lock, self._timeout = lock, timeout
        self.lease: holdfast.Lease | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.lease = self._lock.acquire(timeout=self._timeout)
        except Unavailable as error:
            self.error = error

    def result(self) -> holdfast.Lease:
        self.join()
        if self.error is not None:
            raise self.error
        assert self.lease is not None
        return self.lease


def stands_in_line(locks: holdfast.Locks, name: str, count: int = 1) -> None:
    until(
        lambda: sum(len(info.waiters) for info in locks.inspect(name)) == count,
        f"{count} in line for {name}",
    )


# -- members --------------------------------------------------------------------------------------


@pytest.mark.req("R4", "R21", "etcd compaction, leader change, lease revoked")
@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_the_leader_is_gone(cluster: EtcdCluster, fault: str) -> None:
    """Held through it, waited through it, and handed over after it."""
    with holdfast.connect(cluster.url) as locks, holdfast.connect(cluster.url) as others:
        lease = locks.lock("x", ttl=TTL).acquire()
        assert lease is not None
        waiting = Waiting(others.lock("x", ttl=TTL))
        stands_in_line(locks, "x")
        leader = cluster.leader()
        assert leader is not None
        getattr(leader, fault)()
        cluster.wait_leader(other_than=leader)
        time.sleep(1.5 * TTL)  # more than a lease: it was renewed with the new leader
        assert lease.held, lease.lost
        assert waiting.is_alive()
        with holdfast.connect(cluster.url) as third:
            assert third.lock("x").acquire(blocking=False) is None
        assert lease.release() is True
        handed_over = waiting.result()
        assert handed_over.held
        assert handed_over.fence > lease.fence
        if fault == "pause":
            leader.resume()
        else:
            leader.start()
        # etcd before 3.4.31 and 3.5.13: a leader that was stalled revokes leases that others keep
        # alive. Whether or not it does: who holds is held, or told.
        time.sleep(3)
        with contextlib.suppress(LeaseLost):
            handed_over.renew()
        if not handed_over.lost.is_set():
            assert others.lock("x").acquire(blocking=False) is None
            assert handed_over.release() is True
        else:
            assert handed_over.release() is False
        with locks.lock("x", timeout=20):
            pass


@pytest.mark.req("R4", "R60")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_endpoint_will_do(cluster: EtcdCluster, which: int) -> None:
    cluster.nodes[which].kill()
    cluster.wait_leader()
    with holdfast.connect(cluster.url) as locks, locks.lock("x", ttl=TTL) as lease:
        lease.renew()
        assert locks.lock("x").acquire(timeout=0.5) is None

    async def asynchronously() -> None:
        async with aio.connect(cluster.url) as locks, locks.lock("x", ttl=TTL) as lease:
            await lease.renew()
            assert await locks.lock("x").acquire(timeout=0.5) is None

    asyncio.run(asynchronously())


@pytest.mark.req("R21", "B2", "law 5")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_all_endpoints_are_gone_for_less_than_the_lease(cluster: EtcdCluster, port: str) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as locks:
            lease = await locks.lock("x", ttl=TTL).acquire()
            assert lease is not None
            waiting = asyncio.create_task(locks.lock("x", ttl=TTL).acquire(timeout=40))
            while not (await locks.inspect("x"))[0].waiters:
                await asyncio.sleep(0.01)
            for node in cluster.nodes:
                node.pause()
            await asyncio.sleep(TTL / 3)
            for node in cluster.nodes:
                node.resume()
            await asyncio.sleep(TTL)
            assert lease.held
            assert not waiting.done()
            await lease.release()
            handed_over = await waiting
            assert handed_over is not None
            await handed_over.release()

    def blocking() -> None:
        with holdfast.connect(cluster.url) as locks:
            lease = locks.lock("x", ttl=TTL).acquire()
            assert lease is not None
            for node in cluster.nodes:
                node.pause()
            time.sleep(TTL / 3)
            for node in cluster.nodes:
                node.resume()
            time.sleep(TTL)
            assert lease.held
            assert lease.release() is True

    if port == "aio":
        asyncio.run(main())
    else:
        blocking()


@pytest.mark.req("R21", "B2", "law 5")
def test_all_endpoints_are_gone_for_longer_than_the_lease(cluster: EtcdCluster) -> None:
    with holdfast.connect(cluster.url, request_timeout=10) as locks:
        lease = locks.lock("x", ttl=2).acquire()
        assert lease is not None
        begun = time.monotonic()
        for node in cluster.nodes:
            node.pause()
        assert lease.lost.wait(30) is True
        assert time.monotonic() - begun < 8  # not when the renewal's time is over
        assert not lease.held
        with pytest.raises(Unavailable):
            locks.lock("x").acquire()
        for node in cluster.nodes:
            node.resume()
        cluster.wait_leader()
        with locks.lock("x", timeout=20) as again:
            assert again.fence > lease.fence
        assert lease.release() is False


# -- one member -----------------------------------------------------------------------------------


@pytest.mark.req("etcd compaction, leader change, lease revoked", "B2")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_lease_revoked_by_hand(server: EtcdServer, port: str) -> None:
    """Everything on that session is lost at the next renewal, and who waited begins anew."""
    told: list[LeaseLost] = []

    def revoke_all() -> None:
        for lease in server.api("/v3/lease/leases")["leases"]:
            server.api("/v3/lease/revoke", {"ID": lease["ID"]})

    async def main() -> None:
        async with aio.connect(server.url) as locks, aio.connect(server.url) as others:
            leases = [
                await locks.lock(name, ttl=LONG, renew=0.5, on_lost=told.append).acquire()
                for name in "abc"
            ]
            waiting = asyncio.create_task(others.lock("a", ttl=TTL).acquire(timeout=30))
            while not (await locks.inspect("a"))[0].waiters:
                await asyncio.sleep(0.01)
            revoke_all()
            for lease in leases:
                assert lease is not None
                assert await lease.lost.wait(LONG / 2) is True
                assert not lease.held
            handed_over = await waiting
            assert handed_over is not None
            assert handed_over.held
            await handed_over.release()

    def blocking() -> None:
        with holdfast.connect(server.url) as locks, holdfast.connect(server.url) as others:
            leases = [
                locks.lock(name, ttl=LONG, renew=0.5, on_lost=told.append).acquire()
                for name in "abc"
            ]
            waiting = Waiting(others.lock("a", ttl=TTL))
            stands_in_line(locks, "a")
            revoke_all()
            for lease in leases:
                assert lease is not None
                assert lease.lost.wait(LONG / 2) is True
                assert not lease.held
            handed_over = waiting.result()
            assert handed_over.held
            handed_over.release()

    if port == "aio":
        asyncio.run(main())
    else:
        blocking()
    until(lambda: len(told) == 3, "all three were told")
    assert {loss.name for loss in told} == set("abc")
    assert "revoked" in told[0].reason


@pytest.mark.req("etcd compaction, leader change, lease revoked")
def test_no_space(server: EtcdServer) -> None:
    """Nothing new is granted, and it is said why; what is held is kept, and can be given back."""
    with holdfast.connect(server.url, request_timeout=3) as locks:
        lease = locks.lock("x", ttl=TTL, renew=0.5).acquire()
        assert lease is not None
        member = server.member_id()
        alarm = {"action": "ACTIVATE", "memberID": member, "alarm": "NOSPACE"}
        server.api("/v3/maintenance/alarm", alarm)
        with pytest.raises(Unavailable, match="space"):
            locks.lock("y").acquire()
        with pytest.raises(Unavailable, match="space"):
            locks.lock("y", ttl=2).acquire(blocking=False)
        time.sleep(TTL + 1)  # it was renewed
        assert lease.held
        assert lease.release() is True
        server.api("/v3/maintenance/alarm", {**alarm, "action": "DEACTIVATE"})
        with locks.lock("x", ttl=2), locks.lock("y"):
            pass


@pytest.mark.req("etcd compaction, leader change, lease revoked", "R9")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_watch_is_resumed_after_compaction(
    server: EtcdServer, proxy: FaultProxy, port: str
) -> None:
    """The stream breaks, and the revision it would go on from is gone: look again."""

    def make_it_old() -> None:
        for number in range(20):
            answer = server.api("/v3/kv/put", {"key": b64(b"noise"), "value": b64(b"%d" % number)})
        server.api("/v3/kv/compaction", {"revision": answer["header"]["revision"]})
        proxy.reset()

    def blocking() -> None:
        with holdfast.connect(server.url) as holder, holdfast.connect(via(proxy)) as locks:
            lease = holder.lock("x", ttl=60).acquire()
            assert lease is not None
            waiting = Waiting(locks.lock("x", ttl=60))
            stands_in_line(holder, "x")
            make_it_old()
            time.sleep(0.3)
            assert waiting.is_alive()
            lease.release()
            begun = time.monotonic()
            waiting.result().release()
            assert time.monotonic() - begun < 15  # not the next heartbeat, after 20 s

    async def main() -> None:
        async with aio.connect(server.url) as holder, aio.connect(via(proxy)) as locks:
            lease = await holder.lock("x", ttl=60).acquire()
            assert lease is not None
            waiting = asyncio.create_task(locks.lock("x", ttl=60).acquire(timeout=40))
            while not (await holder.inspect("x"))[0].waiters:
                await asyncio.sleep(0.01)
            make_it_old()
            await asyncio.sleep(0.3)
            await lease.release()
            handed_over = await asyncio.wait_for(waiting, 15)
            assert handed_over is not None
            await handed_over.release()

    if port == "aio":
        asyncio.run(main())
    else:
        blocking()


@pytest.mark.req("R9")
@pytest.mark.parametrize("resets", [1, 5])
def test_a_watch_is_resumed_on_a_new_stream(
    server: EtcdServer, proxy: FaultProxy, resets: int
) -> None:
    with holdfast.connect(server.url) as holder, holdfast.connect(via(proxy)) as locks:
        lease = holder.lock("x", ttl=60).acquire()
        assert lease is not None
        waiting = [Waiting(locks.lock("x", ttl=60)) for _ in range(5)]
        stands_in_line(holder, "x", 5)
        for _ in range(resets):
            proxy.reset()
            time.sleep(0.2)
        lease.release()
        begun = time.monotonic()
        while waiting:
            served: list[Waiting] = until(lambda: [one for one in waiting if one.lease], "served")
            for one in served:
                assert one.lease is not None
                one.lease.release()
                waiting.remove(one)
        assert time.monotonic() - begun < 30


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.req("R20", "law 6")
def test_many_locks_cost_one_keep_alive(proxy: FaultProxy) -> None:
    with holdfast.connect(via(proxy)) as locks:
        leases = [locks.lock(f"n{number}", ttl=30, renew=1).acquire() for number in range(200)]
        proxy.forget()
        before, begun = proxy.requests, time.monotonic()
        time.sleep(3.5)
        cost, took = proxy.requests - before, time.monotonic() - begun
        assert all(lease is not None and lease.held for lease in leases)
        # Every second or so: one keep-alive, one list of keys.
        assert cost <= 3 + 2 * took, f"{cost} requests for 200 leases in {took:.1f} s"


@pytest.mark.req("R20", "R21", "eviction", "law 6")
def test_a_crowd_that_is_renewed_in_parts_notices_deletions(proxy: FaultProxy) -> None:
    """One part keeps the session alive for all; each deletion is noticed all the same."""
    with holdfast.connect(via(proxy)) as locks:
        leases: list[holdfast.Lease] = []
        for part in range(3):
            for number in range(10):
                lease = locks.lock(f"{part}-{number}", ttl=30, renew=1).acquire()
                assert lease is not None
                leases.append(lease)
            time.sleep(0.3)
        time.sleep(1.5)
        before, begun = proxy.requests, time.monotonic()
        time.sleep(3)
        cost = proxy.requests - before
        assert cost <= 4 + 2 * (time.monotonic() - begun)
        for part in range(3):
            locks.evict(f"{part}-5")
        for lease in leases:
            if lease.name.endswith("-5"):
                assert lease.lost.wait(20) is True
        assert sum(lease.held for lease in leases) == 27


@pytest.mark.req("R9", "law 6")
def test_many_waiters_share_one_stream(proxy: FaultProxy) -> None:
    """Three connections at most (calls, the stream, one for who holds), and a hand-over costs as
    many requests with a hundred in line as with two."""

    async def main() -> None:
        async with aio.connect(via(proxy)) as locks:
            costs: list[int] = []
            for crowd in (2, 100):
                name = f"crowd of {crowd}"
                lease = await locks.lock(name, ttl=60).acquire()
                assert lease is not None
                tasks = [
                    asyncio.create_task(locks.lock(name, ttl=60).acquire(timeout=60))
                    for _ in range(crowd)
                ]
                while sum(len(info.waiters) for info in await locks.inspect(name)) < crowd:
                    await asyncio.sleep(0.05)
                before = await asyncio.to_thread(settled, lambda: proxy.requests)
                assert len(proxy.connections) <= 2
                await lease.release()
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0.2)
                costs.append(proxy.requests - before)
                assert len(done) == 1
                for turn in asyncio.as_completed(tasks, timeout=50):
                    served = await turn
                    assert served is not None
                    await served.release()
            assert costs[0] == costs[1] == 2, costs  # one deletion, one look

    asyncio.run(main())


# -- processes ------------------------------------------------------------------------------------


@pytest.mark.req("B3", "law 8", "fork after acquire")
def test_a_fork_among_waiters(server: EtcdServer) -> None:
    """The child makes its own connections, and the parent's stream goes on."""
    with holdfast.connect(server.url) as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        waiting = Waiting(locks.lock("x", ttl=60))
        stands_in_line(locks, "x")

        def child() -> None:
            signal.alarm(30)  # a hang shows as a death
            assert not lease.held
            assert locks.lock("x").acquire(blocking=False) is None
            with locks.lock("y") as own:
                assert own.held
                assert locks.lock("y").acquire(timeout=0.2) is None
            locks.close()

        for _ in range(3):
            in_child(child)
        assert lease.held
        lease.renew()
        assert lease.release() is True
        waiting.result().release()
        assert not locks.lock("y").locked()


@pytest.mark.req("interpreter exits holding a lock", "R2")
@pytest.mark.parametrize("waits", [False, True])
def test_an_interpreter_exits_without_hanging(server: EtcdServer, waits: bool) -> None:
    script = textwrap.dedent(f"""
        import sys, threading, holdfast
        locks = holdfast.connect({server.url!r})
        lease = locks.lock("x", ttl=60).acquire()
        if {waits}:  # it may be granted on the way out, and has nobody then to give it back
            kept = []
            take = lambda: kept.append(locks.lock("x", ttl=2).acquire())
            threading.Thread(target=take, daemon=True).start()
            while not locks.inspect("x")[0].waiters:
                pass
        print("ready", flush=True)
    """)
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "ready\n"
    assert done.stderr == ""
    assert time.monotonic() - begun < 20
    with holdfast.connect(server.url) as locks, locks.lock("x", timeout=20):
        pass


@pytest.mark.req("R60")
def test_no_client_library_is_needed_or_loaded() -> None:
    """So a second client of etcd in this process, of whatever version, does no harm."""
    script = "import sys, holdfast; holdfast.connect('etcd://nowhere'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"grpc", "google", "h2", "hpack", "etcd3"}


@pytest.mark.req("R60")
def test_etcdctl_sees_what_it_should(server: EtcdServer) -> None:
    """A claim is one key with a lease; nothing is left when the client has closed."""
    at = f"127.0.0.1:{server.port}"
    with holdfast.connect(server.url) as locks, locks.lock("x"):
        listed = etcdctl(at, "get", "--prefix", "", "--keys-only").communicate()[0].split()
        assert len(listed) == 1
        assert listed[0].startswith("x/hx-")
        assert len(server.api("/v3/lease/leases")["leases"]) == 1
    assert not etcdctl(at, "get", "--prefix", "", "--keys-only").communicate()[0].strip()
    assert not server.api("/v3/lease/leases").get("leases")
    assert os.path.exists(f"/proc/{server.pid}")
