"""zk:// with ?auth=sasl: DIGEST-MD5, and a wrong password fails at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, Misconfigured
from holdfast.testing import FaultProxy
from tests.faults.zookeeper import sessions
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = pytest.mark.servers

SASL = (102).to_bytes(4, "big")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    jaas: Path = tmp_path_factory.mktemp("sasl") / "jaas.conf"
    jaas.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required"
        ' user_alice="s3cret-a" user_bob="s3cret-b"; };\n'
    )
    with ZooKeeperServer(
        settings={"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"},
        properties={"java.security.auth.login.config": str(jaas)},
    ) as server:
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
