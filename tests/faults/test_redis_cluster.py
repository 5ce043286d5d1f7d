"""redis+cluster://: slots that move while locks in them are held and waited for, and failovers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import aio
from holdfast.backends.redis.keys import Keys, slot_of
from holdfast.ports.clock import now
from holdfast.types import Cell
from tests.faults.redis import fresh, in_line, waiting
from tests.servers import RedisCluster, RedisServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R37", "Cluster MOVED / ASK / failover")]


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisCluster]:
    """For tests that leave all servers alive."""
    with RedisCluster() as servers:
        yield servers


def key_of(url: str, name: str) -> str:
    return Keys(url.partition("prefix=")[2].partition("&")[0]).lock(name)


class Migration:
    """One slot on its way from a master to another one."""

    def __init__(self, servers: RedisCluster, key: str) -> None:
        self.servers, self.slot = servers, slot_of(key)
        self.source = servers.owner_of(key)
        self.target = next(
            node for node in servers.nodes if node.is_master() and node is not self.source
        )
        self._source_id = str(self.source.call("CLUSTER", "MYID"))
        self._target_id = str(self.target.call("CLUSTER", "MYID"))

    def begin(self) -> None:
        self.target.call("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._source_id)
        self.source.call("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._target_id)

    def move_keys(self) -> None:
        while keys := self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            assert isinstance(keys, list)
            self.source.call(
                "MIGRATE", HOST, self.target.port, "", 0, 1000, "KEYS", *map(str, keys)
            )

    def end(self) -> None:
        for node in (self.target, self.source, *self._others()):
            node.call("CLUSTER", "SETSLOT", self.slot, "NODE", self._target_id)

    def _others(self) -> list[RedisServer]:
        both = (self.source, self.target)
        return [node for node in self.servers.nodes if node.is_master() and node not in both]


@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_slot_moves_while_its_lock_is_held_and_waited_for(
    shared: RedisCluster, port: str
) -> None:
    """MOVED is followed; in between, where keys are on both sides, requests are tried again."""
    url = fresh(shared.url, window=8, request_timeout=20)
    migration = Migration(shared, key_of(url, "x"))
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x", ttl=60).acquire(timeout=5)
        assert lease
        with waiting(there.lock("x", ttl=60)) as waiter:
            in_line(here, 1)
            migration.begin()
            migration.move_keys()
            migration.end()
            lease.renew()
            assert lease.held
            assert not waiter.done
            begun = now()
            assert lease.release() is True
            granted = waiter.result()
            assert granted
            assert waiter.at - begun < 15  # far less than a ttl
            assert granted.release() is True

    async def main() -> None:
        async with aio.connect(url) as locks, locks.lock("x", timeout=5) as lease:
            await lease.renew()

    if port == "aio":
        asyncio.run(main())


@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_slot_that_is_migrating(shared: RedisCluster, port: str) -> None:
    """While a slot's keys are partly here and partly there, Redis runs no script on it (TRYAGAIN):
    who asks is told to come back, and has the lock once the slot has arrived. Locks in other slots
    are not concerned."""
    url = fresh(shared.url, request_timeout=10)
    migration = Migration(shared, key_of(url, "x"))

    async def main() -> None:
        async with aio.connect(url) as locks:
            waiting = asyncio.create_task(locks.lock("x").acquire(timeout=25))
            async with locks.lock("another", timeout=5):
                pass
            await asyncio.sleep(0.3)
            assert not waiting.done()
            migration.move_keys()
            migration.end()
            lease = await waiting
            assert lease
            await lease.release()

    with holdfast.connect(url) as locks:
        with locks.lock("x"):  # so that something is there to be moved
            pass
        migration.begin()
        if port == "aio":
            asyncio.run(main())
            return
        with waiting(locks.lock("x")) as waiter:
            with locks.lock("another", timeout=5):
                pass
            until(lambda: not waiter.done, "it waits", 0.3)
            migration.move_keys()
            assert not waiter.done
            migration.end()
            assert waiter.result()
            waiter.lease.release()


def test_ask_is_followed(shared: RedisCluster) -> None:
    """A cell has one key: ASK leads to where it is already."""
    url = fresh(shared.url, request_timeout=5)
    backend_key = key_of(url, "c")
    migration = Migration(shared, backend_key)

    async def main() -> None:
        async with aio.connect(url) as locks:
            backend = locks._current.backend
            deadline = now() + 5
            first = await backend.cell_write(
                "c", b"1", expect=None, fence=None, ttl=30, deadline=deadline
            )
            assert isinstance(first, Cell)
            migration.begin()
            migration.move_keys()
            found = await backend.cell_read("c", now() + 5)
            assert found == first
            second = await backend.cell_write(
                "c", b"2", expect=first.version, fence=None, ttl=30, deadline=now() + 5
            )
            assert isinstance(second, Cell)
            migration.end()
            assert await backend.cell_read("c", now() + 5) == second

    asyncio.run(main())


@pytest.mark.parametrize("how", ["killed", "hanging"])
def test_a_master_fails_over(how: str) -> None:
    """Its locks are its replica's then; those of the others are renewed all the while."""
    with RedisCluster() as servers:
        url = fresh(servers.url, window=4, request_timeout=6)
        confirmed = f"{url}&replicas=1&replica_timeout=1"
        with holdfast.connect(confirmed) as here, holdfast.connect(url) as there:
            owner = servers.owner_of(key_of(url, "x"))
            leases = {
                f"{n}": here.lock(f"{n}", ttl=20, renew=2).acquire(timeout=5) for n in range(12)
            }
            elsewhere = [
                lease for name, lease in leases.items()
                if servers.owner_of(key_of(url, name)) is not owner
            ]  # fmt: skip
            assert 0 < len(elsewhere) < 12
            lease = here.lock("x", ttl=60).acquire(timeout=5)
            assert lease
            with waiting(there.lock("x", ttl=60), timeout=60) as waiter:
                in_line(here, 1)
                replica = servers.nodes[servers.nodes.index(owner) + 3]
                with servers.eager():
                    if how == "killed":
                        owner.kill()
                    else:
                        owner.pause()
                    until(replica.is_master, "a failover", 40)
                servers_ok = [node for node in servers.nodes if node is not owner]
                until(
                    lambda: all(
                        "cluster_state:ok" in str(node.call("CLUSTER", "INFO"))
                        for node in servers_ok
                    ),
                    "the cluster is well again",
                )
                assert all(other is not None and other.held for other in elsewhere)
                assert lease.release() is True
                granted = waiter.result()
                assert granted
                assert granted.fence > (lease.fence or 0)
                granted.release()
            for other in elsewhere:
                assert other is not None
                assert other.held
                other.release()


@pytest.mark.req("server hangs")
def test_seeds_that_hang_or_are_dead_are_passed_over() -> None:
    with RedisCluster() as servers:
        servers.nodes[3].kill()  # replicas
        servers.nodes[4].pause()
        dead, hung = servers.nodes[3].port, servers.nodes[4].port
        alive = servers.nodes[0].port
        seeds = ",".join(f"{HOST}:{port}" for port in (hung, dead, alive))
        with holdfast.connect(fresh(f"redis+cluster://{seeds}", request_timeout=20)) as locks:
            begun = now()
            with locks.lock("x", timeout=20):
                pass
            assert now() - begun < 15
