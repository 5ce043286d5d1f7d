"""redlock://, redlocks://: who may be a node, as whom, and over TLS (R37)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from tests.faults.redis import fresh
from tests.servers import RedisMasters, RedisServer
from tests.servers.tls import Certificates, tls_server
from tests.waiting import until

pytestmark = pytest.mark.servers

SECRET = "S3cr3t-and-unique"
OPTIONS = {"quarantine": "off", "node_timeout": 1}
PORTS = pytest.mark.parametrize("port", ["sync", "aio"])


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=3) as masters:
        yield masters


def refusal(url: str, port: str) -> str:
    async def main() -> None:
        async with aio.connect(url, request_timeout=1.5) as locks:
            await locks.lock("x").acquire()

    begun = time.monotonic()
    with pytest.raises((Misconfigured, Unavailable)) as raised:
        if port == "aio":
            asyncio.run(main())
        else:
            with holdfast.connect(url, request_timeout=1.5) as locks:
                locks.lock("x").acquire()
    assert time.monotonic() - begun < 10
    assert SECRET not in str(raised.value)
    return str(raised.value)


def hand_over(url: str) -> None:
    """From one client to another: renewed, inspected, waited for, heard of."""
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        lease = locks.lock("x", ttl=20).acquire(timeout=10)
        assert lease
        lease.renew()
        assert [info.name for info in other.inspect()] == ["x"]

        async def waits() -> None:
            async with aio.connect(url) as third:
                waiting = asyncio.ensure_future(third.lock("x", ttl=20).acquire(timeout=15))
                await asyncio.sleep(0.3)
                assert await asyncio.to_thread(lease.release) is True
                handed = await waiting
                assert handed
                assert handed.fence > lease.fence
                await handed.release()

        asyncio.run(waits())
        with other.lock("x", timeout=5):
            pass


def has_keys(node: RedisServer, db: str) -> bool:
    return db in node.info("keyspace")


@PORTS
@pytest.mark.req("R34", "R1")
def test_one_server_by_two_names_has_one_vote(masters: RedisMasters, port: str) -> None:
    """It had two, and they were a quorum of three."""
    first = masters.nodes[0].port
    with RedisServer() as gone:
        away = gone.port
    hosts = f"127.0.0.1:{first},localhost:{first},127.0.0.1:{away}"
    assert "the same Redis" in refusal(fresh(f"redlock://{hosts}", **OPTIONS), port)


@PORTS
@pytest.mark.req("R34", "R1")
def test_a_replica_has_no_vote(masters: RedisMasters, port: str) -> None:
    """One that can be written to accepted a vote, and lost it to what its master sent."""
    first, replica, third = masters.nodes
    replica.call("CONFIG", "SET", "replica-read-only", "no")
    replica.call("REPLICAOF", "127.0.0.1", first.port)
    third.kill()
    try:
        until(replica.linked, "it follows")
        assert "no master" in refusal(fresh(masters.url, **OPTIONS), port)
    finally:
        third.restart()
        replica.call("REPLICAOF", "NO", "ONE")


@pytest.mark.req("R34", "R37")
def test_each_node_has_a_user_and_a_database_of_its_own(masters: RedisMasters) -> None:
    logins: list[str] = []
    for number, node in enumerate(masters.nodes):
        user = f"user{number}"
        node.call("ACL", "SETUSER", user, "on", f">{SECRET}{number}", "~*", "&*", "+@all")
        logins.append(f"{user}:{SECRET}{number}@127.0.0.1:{node.port}")
    url = fresh(f"redlock://{','.join(logins)}/0,1,5", **OPTIONS)
    hand_over(url)
    with holdfast.connect(url) as locks:
        assert SECRET not in repr(locks)
        assert "user1:***@" in repr(locks)
        lease = locks.lock("x", ttl=20).acquire()
        assert lease
        lease.renew()  # also where it was still being connected to
        for node, db in zip(masters.nodes, ("db0", "db1", "db5"), strict=True):
            until(partial(has_keys, node, db), f"the lock in {db}")
        lease.release()
    swapped = fresh(f"redlock://{','.join(logins)}/0".replace("user1:", "user0:"), **OPTIONS)
    swapped = swapped.replace("user2:", "user0:")
    assert "user name or password" in refusal(swapped, "sync")


@PORTS
@pytest.mark.req("R37", "wrong credentials")
def test_an_acl_that_forbids_a_command_of_a_script(masters: RedisMasters, port: str) -> None:
    for node in masters.nodes:
        node.call("ACL", "SETUSER", "poor", "on", f">{SECRET}", "~*", "&*", "+@all", "-set")
    hosts = masters.url.removeprefix("redlock://")
    text = refusal(fresh(f"redlock://poor:{SECRET}@{hosts}", **OPTIONS), port)
    assert "exact ACL" in text


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("redlocks"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Iterator[str]:
    """Three masters that want to see a certificate."""
    with ExitStack() as stack:
        ports: list[int] = []
        for _ in range(3):
            server, port = tls_server(certificates)
            stack.enter_context(server)
            ports.append(port)
        yield ",".join(f"127.0.0.1:{port}" for port in ports)


@pytest.mark.req("R37", "R34")
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_tls(certificates: Certificates, tls: str, protocol: str) -> None:
    url = fresh(
        f"redlocks://{tls}", **OPTIONS, protocol=protocol, tls_ca=certificates.ca,
        tls_cert=certificates.client, tls_key=certificates.client_key,
    )  # fmt: skip
    hand_over(url)


@PORTS
@pytest.mark.req("R37")
def test_tls_that_cannot_work_is_told(
    certificates: Certificates, tls: str, port: str, tmp_path: Path
) -> None:
    strangers = Certificates(tmp_path)
    assert "not trusted" in refusal(fresh(f"redlocks://{tls}", tls_ca=strangers.ca), port)
    without = refusal(fresh(f"redlocks://{tls}", **OPTIONS, tls_ca=certificates.ca), port)
    assert "certificate" in without
