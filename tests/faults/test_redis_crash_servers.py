"""The crash detector with Redis Sentinel and Redis Cluster: failovers and slots that move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import aio
from holdfast.backends.redis.keys import Keys
from holdfast.ports.clock import now
from tests.faults.crash import Pulse, Watch, cut, links, watching
from tests.faults.peers import Peer
from tests.faults.redis import fresh, waiting
from tests.faults.test_redis_cluster import Migration
from tests.faults.test_redis_failover import fail_over, replicated
from tests.servers import RedisCluster, RedisSentinel, RedisServer
from tests.servers.tls import Certificates, tls_server
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R23", "R37")]

LONG = 60.0
MARGIN = 20.0
"""Less than the ttl, which would free them as well."""


def keys_of(url: str) -> Keys:
    return Keys(url.partition("prefix=")[2].partition("&")[0])


def die(url: str, watch: Watch, count: int, grace: float) -> None:
    """Somebody takes so many locks and dies; all of them are free after the grace."""
    with Peer(url) as peer, holdfast.connect(url) as locks:
        peer.run(f"held.extend(locks.lock(f'd{{n}}', ttl=60).acquire() for n in range({count}))")
        before = len(watch.events("freed"))
        killed = now()
        peer.kill()
        for number in range(count):
            lease = locks.lock(f"d{number}", ttl=LONG).acquire(timeout=20)
            assert lease
            lease.release()
        assert grace < now() - killed < grace + MARGIN
        watch.wait("freed", before + count)


def test_over_tls_and_with_the_other_protocol(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    server, port = tls_server(files)
    with server:
        url = (
            f"rediss://127.0.0.1:{port}/3?protocol=3&tls_ca={files.ca}&tls_cert={files.client}"
            f"&tls_key={files.client_key}&crash_grace=6"
        )
        with watching(url, tmp_path) as watch, holdfast.connect(url) as locks:
            watch.leads()
            lease = locks.lock("mine", ttl=LONG).acquire()
            assert lease
            die(url, watch, 3, 6.0)
            assert lease.held
            until(lambda: len(links(server)) == 1, "the others' links are gone")
            assert cut(server) == 1
            until(lambda: links(server), "it has another link")
            assert lease.held

        async def main() -> None:
            async with aio.connect(url) as locks, locks.lock("x", ttl=LONG) as lease:
                for _ in range(3):
                    while not cut(server):
                        await asyncio.sleep(0.02)
                    await asyncio.sleep(0.4)
                    assert lease.held

        asyncio.run(main())


# -- Sentinel --------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[RedisSentinel]:
    with RedisSentinel() as servers:
        yield servers


@pytest.mark.parametrize("how", ["killed", "hanging"])
@pytest.mark.req("failover with the lock unreplicated")
def test_a_failover_shorter_than_the_grace_costs_nobody_anything(
    servers: RedisSentinel, tmp_path: Path, how: str
) -> None:
    url = fresh(servers.url, crash_grace=20, request_timeout=20)
    with watching(url, tmp_path) as watch, holdfast.connect(url) as here:
        watch.leads()
        lease = here.lock("x", ttl=LONG).acquire(timeout=5)
        assert lease
        replicated(servers, keys_of(url).lock("x"))
        master = fail_over(servers, how)
        until(lambda: links(master), "its link is on the new master")
        until(lambda: lease.held, "held")
        until(lambda: len(watch.events("leading")) > 1 or watch.events("anew"), "noticed")
        time.sleep(1)
        assert lease.held
        assert watch.events("freed") == []
        assert lease.release() is True


def test_a_failover_longer_than_the_grace_is_never_two_holders(
    servers: RedisSentinel, tmp_path: Path
) -> None:
    """The clients cannot know that it is not they who are cut off: they give up first. Afterwards
    the dead are found on the new master."""
    grace = 0.8
    url = fresh(servers.url, crash_grace=grace, request_timeout=20)
    told: list[float] = []
    with (
        Pulse() as pulse,
        watching(url, tmp_path) as watch,
        holdfast.connect(url) as here,
        holdfast.connect(url) as there,
    ):
        watch.leads()
        mine = here.lock("x", ttl=LONG, on_lost=lambda lost: told.append(now())).acquire(timeout=5)
        assert mine
        replicated(servers, keys_of(url).lock("x"))
        with waiting(there.lock("x", ttl=LONG), timeout=60) as waiter:
            fail_over(servers, "killed")
            lease = waiter.result(60)
            assert lease
            until(lambda: told, "it was told")
            assert told[0] < waiter.at + pulse.worst
            assert not mine.held
            lease.release()
        # Its own lock may have survived the failover.
        until(lambda: len(watch.events("leading")) > 1 or watch.events("anew"), "noticed")
        die(url, watch, 3, grace)


def test_a_master_that_is_demoted_without_a_word_is_left(servers: RedisSentinel) -> None:
    """It answers pings, but the detector does not look at it any more."""
    url = fresh(servers.url, crash_grace=3, request_timeout=20)
    with holdfast.connect(url) as locks:
        lease = locks.lock("x", ttl=LONG).acquire(timeout=5)
        assert lease
        old = servers.wait_master()
        other = next(node for node in servers.nodes if node is not old)
        begun = links(old)
        old.call("REPLICAOF", "127.0.0.1", other.port)
        until(lambda: links(old) != begun, "the link is given up")


# -- Cluster ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as servers:
        yield servers


def masters(cluster: RedisCluster) -> list[RedisServer]:
    return [node for node in cluster.nodes if node.is_master()]


def test_the_dead_of_a_cluster(cluster: RedisCluster, tmp_path: Path) -> None:
    """Their locks are on all masters, their links on one."""
    url = fresh(cluster.url, crash_grace=4, request_timeout=10)
    with watching(url, tmp_path) as watch, Peer(url) as alive:
        watch.leads()
        alive.run("held.extend(locks.lock(f'a{n}', ttl=60).acquire() for n in range(20))")
        die(url, watch, 20, 4.0)
        assert alive.run("any(lease.lost.is_set() for lease in held)") is False
        until(lambda: alive.run("all(lease.held for lease in held)"), "the living hold")
        assert {event["name"][0] for event in watch.events("freed")} == {"d"}


@pytest.mark.req("Cluster MOVED / ASK / failover")
def test_the_links_slot_moves(cluster: RedisCluster, tmp_path: Path) -> None:
    """Also while it is on its way: then the old master answers, and is looked at."""
    url = fresh(cluster.url, crash_grace=4, request_timeout=10)
    with watching(url, tmp_path) as watch, holdfast.connect(url) as locks:
        watch.leads()
        lost: list[object] = []
        lease = locks.lock("x", ttl=LONG, on_lost=lost.append).acquire(timeout=5)
        assert lease
        [presence] = {name for node in masters(cluster) for name in links(node)}
        migration = Migration(cluster, keys_of(url).lock(f"{presence} 0"))
        assert presence in links(migration.source)
        migration.begin()
        time.sleep(2)
        until(lambda: lease.held, "held")
        assert presence in links(migration.source)
        migration.move_keys()
        migration.end()
        until(lambda: presence in links(migration.target), "the link has moved")
        until(lambda: lease.held, "held")
        time.sleep(6)  # more than the grace
        until(lambda: lease.held, "held")
        assert not lost
        assert watch.events("freed") == []
        assert lease.release() is True
        assert presence not in links(migration.source)


@pytest.mark.req("Cluster MOVED / ASK / failover")
def test_a_locks_slot_moves_while_its_holder_is_dead(cluster: RedisCluster, tmp_path: Path) -> None:
    url = fresh(cluster.url, crash_grace=2, request_timeout=10)
    with watching(url, tmp_path) as watch, Peer(url) as peer, holdfast.connect(url) as locks:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        migration = Migration(cluster, keys_of(url).lock("x"))
        peer.kill()
        watch.wait("missing")
        migration.begin()
        migration.move_keys()
        migration.end()
        lease = locks.lock("x", ttl=LONG).acquire(timeout=20)
        assert lease
        lease.release()
        watch.wait("freed")


def test_the_master_of_a_link_dies(tmp_path: Path) -> None:
    """The link goes to another one, and locks on healthy masters are kept; nobody is freed while a
    master does not answer."""
    with RedisCluster() as cluster:
        url = fresh(cluster.url, crash_grace=10, request_timeout=20)
        with watching(url, tmp_path) as watch, holdfast.connect(url) as locks:
            watch.leads()
            first = locks.lock("first", ttl=LONG).acquire(timeout=5)
            assert first
            [presence] = {name for node in masters(cluster) for name in links(node)}
            master = next(node for node in masters(cluster) if presence in links(node))
            keys = keys_of(url)
            names = [f"l{number}" for number in range(12)]
            held = {name: locks.lock(name, ttl=LONG).acquire(timeout=5) for name in names}
            safe = [name for name in names if cluster.owner_of(keys.lock(name)) is not master]
            assert safe
            with cluster.eager():
                master.kill()
                until(
                    lambda: any(
                        presence in links(node)
                        for node in cluster.nodes
                        if node is not master and node.is_master()
                    ),
                    "the link is elsewhere",
                    40,
                )
            time.sleep(11)  # more than the grace
            for name in safe:
                lease = held[name]
                assert lease
                assert not lease.lost.is_set(), name
                until(partial(getattr, lease, "held"), f"{name} is held")
            assert not {event["name"] for event in watch.events("freed")} & set(safe)
