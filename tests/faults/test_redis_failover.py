"""redis+sentinel://: the master dies, hangs or is demoted while locks are held and waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Unavailable, aio
from holdfast.ports.clock import now
from tests.faults.redis import fresh, in_line, until, waiting
from tests.servers import RedisError, RedisSentinel, RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.req("R37")]


@pytest.fixture
def servers() -> Iterator[RedisSentinel]:
    with RedisSentinel(down_after=400) as servers:
        yield servers


def fail_over(servers: RedisSentinel, how: str) -> RedisServer:
    """Another master; the old one is dead, hangs, or has become a replica."""
    master = servers.wait_master()
    if how == "killed":
        master.kill()
    elif how == "hanging":
        master.pause()
    else:
        demote(servers.sentinels[0], servers.master_name)
    return servers.wait_master(other_than=master)


def demote(sentinel: RedisServer, master: str) -> None:
    """Sentinels forget what they were told when they are not in the mood: tell them again."""

    def now_master() -> object:
        reply = sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", master)
        assert isinstance(reply, list)
        return reply[1]

    def tell() -> bool:
        with contextlib.suppress(RedisError):  # INPROG
            sentinel.call("SENTINEL", "FAILOVER", master)
        with contextlib.suppress(AssertionError):
            until(lambda: now_master() != old, "a failover", 3)
        return now_master() != old

    old = now_master()
    until(tell, "a failover", 20)


def renewed(lease: holdfast.Lease | None) -> bool:
    """False while the old master is asked, or its replicas have not found the new one."""
    assert lease is not None
    try:
        lease.renew()
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("how", ["killed", "hanging", "demoted"])
@pytest.mark.req("failover with the lock unreplicated", "B1", "law 7", "R21")
def test_a_failover_while_locks_are_held_and_waited_for(servers: RedisSentinel, how: str) -> None:
    """The holder keeps its lock, which was replicated; the waiter keeps its place and is called by
    the new master; tokens go on."""
    url = fresh(servers.url, window=4, request_timeout=20, replicas=1, replica_timeout=1)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x", ttl=8).acquire(timeout=5)
        assert lease
        with waiting(there.lock("x", ttl=8), timeout=30) as waiter:
            in_line(here, 1)
            fail_over(servers, how)
            until(lambda: renewed(lease), "a renewal by the new master")
            assert lease.held
            begun = now()
            assert lease.release() is True
            granted = waiter.result()
            assert granted
            assert waiter.at - begun < 3
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
            assert waiter.at - begun < 0.5
            waiter.lease.release()


@pytest.mark.req("R37", "B2")
def test_a_failover_in_asyncio(servers: RedisSentinel) -> None:
    url = fresh(servers.url, window=4, request_timeout=20, replicas=2, replica_timeout=1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(url) as here, aio.connect(url) as there:
            lease = await here.lock("x", ttl=8).acquire(timeout=5)
            assert lease
            waiting = asyncio.create_task(there.lock("x", ttl=8).acquire(timeout=30))
            while not any(info.waiters for info in await here.inspect("x")):
                await asyncio.sleep(0.005)
            await loop.run_in_executor(None, fail_over, servers, "killed")
            assert lease.held
            # Two replicas are not there any more: what is held stays, what is new is refused.
            with pytest.raises(Unavailable, match="of 2 replicas"):
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
        master = servers.wait_master()
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
        servers.wait_master(other_than=master)
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


@pytest.mark.req("R37", "server hangs")
def test_a_sentinel_that_names_the_master_of_old(servers: RedisSentinel) -> None:
    """One that was cut off during the failover goes on naming the old master, which says itself
    that it is none any more: the others are asked."""
    liar = servers.sentinels[0]
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in servers.sentinels)
    assert servers.url.startswith(f"redis+sentinel://{hosts}")  # it is asked first
    liar.pause()
    demote(servers.sentinels[1], servers.master_name)
    until(servers.sentinels[1].ping, "it answers")
    with holdfast.connect(fresh(servers.url)) as locks, locks.lock("x", timeout=10):
        pass
    liar.resume()
