"""redis+sentinel://: the master dies or hangs while locks are held and waited for."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Unavailable, aio
from holdfast.backends.redis.keys import Keys
from holdfast.ports.clock import now
from tests.faults.redis import fresh, in_line, waiting
from tests.servers import RedisSentinel, RedisServer
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R37")]


@pytest.fixture
def servers() -> Iterator[RedisSentinel]:
    with RedisSentinel() as servers:
        yield servers


def fail_over(servers: RedisSentinel, how: str) -> RedisServer:
    """Another master; the old one is dead, or hangs and does not know it yet."""
    with servers.failing_over() as master:
        if how == "killed":
            master.kill()
        else:
            master.pause()
    return servers.wait_master(other_than=master)


def replicated(servers: RedisSentinel, key: str) -> None:
    """Until every replica has the key."""
    master = servers.wait_master()
    others = [node for node in servers.nodes if node is not master]
    until(lambda: all(node.call("EXISTS", key) == 1 for node in others), f"{key} everywhere")


def renewed(lease: holdfast.Lease | None) -> bool:
    """False while the old master is asked, or its replicas have not found the new one."""
    assert lease is not None
    try:
        lease.renew()
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("how", ["killed", "hanging"])
@pytest.mark.req("failover with the lock unreplicated", "B1", "law 7", "R21")
def test_a_failover_while_locks_are_held_and_waited_for(servers: RedisSentinel, how: str) -> None:
    """The holder keeps its lock, which was replicated; the waiter keeps its place and is called by
    the new master; tokens go on."""
    url = fresh(servers.url, window=4, request_timeout=8)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x", ttl=120).acquire(timeout=5)
        assert lease
        with waiting(there.lock("x", ttl=60), timeout=100) as waiter:
            in_line(here, 1)
            keys = Keys(url.partition("prefix=")[2].partition("&")[0])
            replicated(servers, keys.lock("x"))
            replicated(servers, keys.lock("x") + ":c")
            fail_over(servers, how)
            until(lambda: renewed(lease), "a renewal by the new master")
            assert lease.held
            begun = now()
            assert lease.release() is True
            granted = waiter.result()
            assert granted
            # It looks by itself, when the old master's answer is not waited for any more.
            assert waiter.at - begun < 25
            assert lease.fence is not None
            assert granted.fence is not None
            assert granted.fence > lease.fence
            granted.release()
        # And everything is as before: calls arrive at once.
        lease = here.lock("y").acquire(timeout=5)
        assert lease
        with waiting(there.lock("y")) as waiter:
            in_line(here, 1, "y")
            begun = now()
            lease.release()
            assert waiter.result()
            assert waiter.at - begun < 8
            waiter.lease.release()


@pytest.mark.req("R37", "B2")
def test_a_failover_in_asyncio(servers: RedisSentinel) -> None:
    url = fresh(servers.url, window=4, request_timeout=20, replicas=2, replica_timeout=1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(url) as here, aio.connect(url) as there:
            lease = await here.lock("x", ttl=60).acquire(timeout=5)
            assert lease
            waiting = asyncio.create_task(there.lock("x", ttl=60).acquire(timeout=30))
            while not any(info.waiters for info in await here.inspect("x")):
                await asyncio.sleep(0.005)
            await loop.run_in_executor(None, fail_over, servers, "killed")
            assert lease.held
            # Two replicas are not there any more: what is held stays, what is new is refused.
            with pytest.raises(Unavailable):
                await here.lock("new").acquire(timeout=1.5)
            await lease.release()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.req("B1", "law 7", "failover with the lock unreplicated")
def test_a_replica_that_never_saw_the_lock_takes_over(servers: RedisSentinel) -> None:
    """Then two may believe in it, until the first one asks; tokens tell them apart."""
    url = fresh(servers.url, request_timeout=20)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        with here.lock("x"):
            pass
        with servers.failing_over() as master:
            # Cut the replicas off, so that the master's last writes reach nobody.
            replicas = [node for node in servers.nodes if node is not master]
            for replica in replicas:
                replica.pause()
            master.call("CLIENT", "KILL", "TYPE", "replica")
            lease = here.lock("x", ttl=60, renew=False).acquire(timeout=5)
            assert lease
            master.kill()
            for replica in replicas:
                replica.resume()
        second = there.lock("x").acquire(timeout=10)
        assert second
        assert second.fence is not None
        assert lease.fence is not None
        assert second.fence > lease.fence
        with pytest.raises(holdfast.LeaseLost):
            until(lambda: renewed(lease), "a renewal")
        assert lease.release() is False
        assert second.release() is True


@pytest.mark.req("R37", "server hangs")
def test_sentinels_that_hang_or_are_dead_are_passed_over(servers: RedisSentinel) -> None:
    servers.sentinels[0].pause()
    try:
        with holdfast.connect(fresh(servers.url)) as locks:
            begun = now()
            with locks.lock("x", timeout=4):
                pass
            assert now() - begun < 3
    finally:
        servers.sentinels[0].resume()


class FakeSentinel(socketserver.BaseRequestHandler):
    """Names whom it was told to name, whatever has happened since."""

    names = 0

    def handle(self) -> None:
        while data := self.request.recv(65536):
            words = data.split(b"\r\n")
            for word in words:
                if word == b"GET-MASTER-ADDR-BY-NAME":
                    port = b"%d" % self.names
                    answer = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port)
                    self.request.sendall(answer)
                elif word in (b"CLIENT", b"ROLE", b"INFO"):
                    self.request.sendall(b"-ERR not here\r\n")


@pytest.mark.req("R37")
def test_a_sentinel_that_names_the_master_of_old(redis_sentinel: RedisSentinel) -> None:
    """One that was cut off goes on naming the old master, which says itself that it is none any
    more: then the others are asked."""
    master = redis_sentinel.wait_master()
    old = next(node for node in redis_sentinel.nodes if node is not master)
    FakeSentinel.names = old.port
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), FakeSentinel) as liar:
        liar.daemon_threads = True
        thread = threading.Thread(target=liar.serve_forever, args=(0.05,))
        thread.start()
        try:
            hosts = redis_sentinel.url.partition("://")[2]
            url = fresh(f"redis+sentinel://127.0.0.1:{liar.server_address[1]},{hosts}")
            with holdfast.connect(url) as locks, locks.lock("x", timeout=5):
                pass
        finally:
            liar.shutdown()
            thread.join()
