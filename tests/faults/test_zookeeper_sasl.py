"""zk:// with ?auth=sasl: DIGEST-MD5, and a wrong password, or none, fails at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, Misconfigured, aio
from holdfast.testing import FaultProxy
from tests.faults.zookeeper import sessions
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = pytest.mark.servers

SASL = (102).to_bytes(4, "big")


@pytest.fixture(scope="module")
def jaas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jaas = tmp_path_factory.mktemp("sasl") / "jaas.conf"
    jaas.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required"
        ' user_alice="s3cret-a" user_bob="s3cret-b"; };\n'
    )
    return jaas


def with_users(jaas: Path, **settings: str) -> ZooKeeperServer:
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    return ZooKeeperServer(
        settings={"authProvider.1": provider, **settings},
        properties={"java.security.auth.login.config": str(jaas)},
    )


@pytest.fixture(scope="module")
def address(jaas: Path) -> Iterator[str]:
    with with_users(jaas) as server:
        yield f"{HOST}:{server.port}"


@pytest.fixture(scope="module")
def strict(jaas: Path) -> Iterator[str]:
    """Of a server that serves only who has authenticated by SASL."""
    enforced = {"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"}
    with with_users(jaas, **enforced) as server:
        yield f"{HOST}:{server.port}"


@pytest.mark.req("R50", "wrong credentials")
def test_users_by_sasl(address: str) -> None:
    with (
        holdfast.connect(f"zk://alice:s3cret-a@{address}/sasl?auth=sasl") as alice,
        holdfast.connect(f"zk://bob:s3cret-b@{address}/sasl?auth=sasl") as bob,
    ):
        with alice.lock("x", timeout=10) as lease:
            assert lease.held
            with pytest.raises(Misconfigured, match="ACL"):
                bob.lock("x").acquire()
        with alice.lock("x", timeout=10):
            pass


@pytest.mark.req("R50", "wrong credentials")
def test_a_wrong_password(address: str) -> None:
    url = f"zk://alice:n0t-it@{address}/sasl?auth=sasl"
    with holdfast.connect(url, request_timeout=30) as locks:
        begun = time.monotonic()
        with pytest.raises(HoldfastError) as refused:
            locks.lock("x").acquire()
        assert time.monotonic() - begun < 15
        assert "credentials" in str(refused.value)
        assert "n0t-it" not in str(refused.value)


@pytest.mark.req("R50", "R21")
def test_a_connection_that_ends_in_the_middle_of_the_password(address: str) -> None:
    """kazoo takes that for a wrong password, which it was not a moment ago."""
    host, _, port = address.partition(":")
    with (
        FaultProxy((host, int(port)), framing="zookeeper") as proxy,
        holdfast.connect(
            f"zk://alice:s3cret-a@{HOST}:{proxy.port}/sasl?auth=sasl", request_timeout=20
        ) as locks,
        locks.lock("x", timeout=10) as lease,
    ):
        (session,) = sessions(locks)
        for _ in range(3):
            fault = proxy.reset_on_reply(to=lambda frame: frame[8:12] == SASL)
            proxy.reset()
            until(lambda: not session.wire.up, "the connection is lost")
            assert lease.renew() > 0
            fault.undo()
            assert sessions(locks) == [session]
        assert lease.held


STRANGERS = {
    "nobody": ("", "", "enforce.auth.enabled"),
    "by another scheme": ("alice:s3cret-a@", "", "enforce.auth.enabled"),
    "a wrong password": ("alice:n0t-it@", "?auth=sasl", "credentials"),
}


@pytest.mark.req("R50", "wrong credentials")
@pytest.mark.parametrize("who", STRANGERS)
def test_a_server_that_serves_only_who_has_authenticated(strict: str, who: str) -> None:
    """It was told as silent, when all of the time was over: of the requests that are sent together
    it refuses the first, and hangs up."""
    user, query, said = STRANGERS[who]
    url = f"zk://{user}{strict}/strict{query}"
    began = time.monotonic()

    async def ask() -> None:
        async with aio.connect(url) as locks:
            with pytest.raises(Misconfigured, match=said):
                await locks.lock("x").acquire()

    asyncio.run(ask())
    with holdfast.connect(url) as locks:
        for ask_for in (
            locks.lock("x").acquire,
            locks.rwlock("x").read().acquire,
            locks.inspect,
            lambda: locks.evict("x"),
            locks.latch("l", 1).count_down,
        ):
            with pytest.raises(Misconfigured, match=said):
                ask_for()
        assert locks._engine().keeper._owed == {}
    assert time.monotonic() - began < 4  # a request has 5 s


@pytest.mark.req("R50")
def test_who_has_authenticated_is_served(strict: str) -> None:
    with (
        holdfast.connect(f"zk://alice:s3cret-a@{strict}/strict?auth=sasl") as locks,
        locks.lock("y", timeout=10) as lease,
    ):
        assert lease.renew() > 0
