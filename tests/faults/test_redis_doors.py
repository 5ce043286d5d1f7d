"""redis://, rediss://: who is not let in is told so at once, why, and without secrets (R37)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, Misconfigured, Unavailable, aio
from tests.conformance.redis import ACL, ENCODED, PASSWORD, add_user
from tests.servers import RedisCluster, RedisSentinel, RedisServer
from tests.servers.tls import Certificates, tls_server

pytestmark = pytest.mark.servers

SECRET = "S3cr3t-and-unique"
PATIENT = 60.0
SOON = 20.0
"""Seconds: before `request_timeout` ends, and with the clean-up that closing may try."""
PORTS = pytest.mark.parametrize("port", ["sync", "aio"])


def refusal(url: str, port: str) -> HoldfastError:
    """What an acquire without a time limit raises, which must be soon."""

    more = {} if "request_timeout" in url else {"request_timeout": PATIENT}

    async def main() -> None:
        async with aio.connect(url, **more) as locks:
            await locks.lock("x").acquire()

    begun = time.monotonic()
    with pytest.raises((Misconfigured, Unavailable)) as raised:
        if port == "aio":
            asyncio.run(main())
        else:
            with holdfast.connect(url, **more) as locks:
                locks.lock("x").acquire()
    assert time.monotonic() - begun < SOON
    for secret in (SECRET, PASSWORD, ENCODED):
        assert secret not in str(raised.value)
    return raised.value


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        add_user(server)
        server.call("ACL", "SETUSER", "blind", "on", f">{SECRET}", "~*", "+@all", "-info", "-role")
        server.call("ACL", "SETUSER", "poor", "on", f">{SECRET}", "~*", "&*", "+@all", "-set")
        server.call("ACL", "SETUSER", "mute", "on", f">{SECRET}", "~*", "resetchannels", "+@all")
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Iterator[int]:
    server, port = tls_server(certificates)
    with server:
        yield port


# -- passwords ------------------------------------------------------------------------------------


@PORTS
@pytest.mark.req("wrong credentials", "law 9", "R37")
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_a_wrong_password(server: RedisServer, port: str, protocol: str) -> None:
    for login in (f"{ACL[0]}:{SECRET}", f"nobody:{SECRET}"):
        url = f"redis://{login}@127.0.0.1:{server.port}/0?protocol={protocol}"
        error = refusal(url, port)
        assert isinstance(error, Misconfigured)
        assert "user name or password" in str(error)


@PORTS
@pytest.mark.req("wrong credentials", "law 9", "R37")
def test_a_password_where_none_is_wanted(server: RedisServer, port: str) -> None:
    error = refusal(f"redis://:{SECRET}@127.0.0.1:{server.port}", port)
    assert isinstance(error, Misconfigured)


@PORTS
@pytest.mark.req("wrong credentials", "R37")
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_no_password_where_one_is_wanted(port: str, protocol: str) -> None:
    with RedisServer(settings={"requirepass": SECRET}) as server:
        address = f"127.0.0.1:{server.port}/0?protocol={protocol}"
        assert "password" in str(refusal(f"redis://{address}", port))
        with holdfast.connect(f"redis://:{SECRET}@{address}") as locks, locks.lock("x"):
            pass


@PORTS
@pytest.mark.req("wrong credentials", "R37")
def test_an_acl_that_forbids_a_command_of_a_script(server: RedisServer, port: str) -> None:
    error = refusal(f"redis://poor:{SECRET}@127.0.0.1:{server.port}", port)
    assert isinstance(error, Misconfigured)
    assert "ACL" in str(error)


@PORTS
@pytest.mark.req("R37")
def test_an_acl_without_keys(server: RedisServer, port: str) -> None:
    url = f"redis://{ACL[0]}:{ENCODED}@127.0.0.1:{server.port}?prefix=somebody-elses"
    error = refusal(url, port)
    assert isinstance(error, Misconfigured)
    assert "ACL" in str(error)


@pytest.mark.req("R37")
def test_who_may_not_ask_for_the_run_id_waits_all_the_same(server: RedisServer) -> None:
    """Its calls cannot be dated, so each is confirmed by a round trip."""
    server.call("ACL", "SETUSER", "blind", "&*")
    url = f"redis://blind:{SECRET}@127.0.0.1:{server.port}"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("blind").acquire()
        assert lease

        async def main() -> None:
            loop = asyncio.get_running_loop()
            waiting = loop.run_in_executor(None, lambda: there.lock("blind").acquire(timeout=20))
            while not any(info.waiters for info in here.inspect("blind")):
                await asyncio.sleep(0.005)
            lease.release()
            granted = await waiting
            assert granted is not None
            granted.release()

        asyncio.run(main())


@pytest.mark.req("R37")
def test_who_may_not_listen_is_served_and_told_why(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the channels a waiter asks again and again; and the log says what is missing."""
    plain = f"redis://127.0.0.1:{server.port}"
    url = f"redis://mute:{SECRET}@127.0.0.1:{server.port}"
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        holdfast.connect(plain) as there,
        holdfast.connect(url) as here,
    ):
        lease = there.lock("mute", ttl=1.5, renew=False).acquire()
        assert lease
        granted = here.lock("mute").acquire(timeout=8)
        assert granted
        granted.release()
    assert "NOPERM" in caplog.text


# -- TLS ------------------------------------------------------------------------------------------


@PORTS
@pytest.mark.req("wrong credentials", "R37")
def test_a_certificate_of_an_unknown_authority(tls: int, port: str) -> None:
    error = refusal(f"rediss://127.0.0.1:{tls}", port)
    assert isinstance(error, Misconfigured)
    assert "tls_ca" in str(error)


@PORTS
@pytest.mark.req("wrong credentials", "R37")
def test_an_expired_certificate(tmp_path: Path, port: str) -> None:
    files = Certificates(tmp_path, expired=True)
    server, number = tls_server(files, ask_clients=False)
    with server:
        error = refusal(f"rediss://127.0.0.1:{number}?tls_ca={files.ca}", port)
    assert isinstance(error, Misconfigured)
    assert "expired" in str(error)


@PORTS
@pytest.mark.req("wrong credentials", "R37")
def test_a_certificate_for_another_name(tmp_path: Path, port: str) -> None:
    files = Certificates(tmp_path, names=("example.org",))
    server, number = tls_server(files, ask_clients=False)
    with server:
        error = refusal(f"rediss://127.0.0.1:{number}?tls_ca={files.ca}", port)
        assert isinstance(error, Misconfigured)
        assert "names" in str(error)
        # What the user asked not to be checked is not.
        url = f"rediss://127.0.0.1:{number}?tls_check=off"
        with holdfast.connect(url) as locks, locks.lock("x"):
            pass


@PORTS
@pytest.mark.req("wrong credentials", "R37")
def test_a_client_without_a_certificate(tls: int, certificates: Certificates, port: str) -> None:
    """What it says before it hangs up is lost if we talk meanwhile; so then it is heard out."""
    error = refusal(f"rediss://127.0.0.1:{tls}?tls_ca={certificates.ca}", port)
    assert isinstance(error, Misconfigured)
    assert "tls_cert" in str(error)


@PORTS
@pytest.mark.req("R37")
def test_tls_to_a_plain_port(server: RedisServer, certificates: Certificates, port: str) -> None:
    """Redis waits for the end of what it takes for a line, and says nothing."""
    address = f"127.0.0.1:{server.port}"
    refusal(f"rediss://{address}?tls_ca={certificates.ca}&request_timeout=1", port)


@PORTS
@pytest.mark.req("R37")
def test_plain_text_to_a_tls_port(tls: int, port: str) -> None:
    refusal(f"redis://127.0.0.1:{tls}?request_timeout=1", port)


@pytest.mark.req("R37")
def test_certificates_that_are_not_there() -> None:
    with pytest.raises(Misconfigured, match="cannot be loaded"):
        holdfast.connect("rediss://127.0.0.1?tls_ca=/nowhere.pem")


# -- other servers than meant ---------------------------------------------------------------------


@PORTS
@pytest.mark.req("R37")
def test_a_database_that_is_not_there(server: RedisServer, port: str) -> None:
    error = refusal(f"redis://127.0.0.1:{server.port}/99", port)
    assert isinstance(error, Misconfigured)
    assert "database" in str(error)


@PORTS
@pytest.mark.req("R37")
def test_servers_that_are_something_else(
    redis_cluster: RedisCluster, redis_sentinel: RedisSentinel, server: RedisServer, port: str
) -> None:
    node, sentinel = redis_cluster.nodes[0].port, redis_sentinel.sentinels[0].port
    for url, advice in (
        (f"redis://127.0.0.1:{node}", "redis+cluster://"),
        (f"redis://127.0.0.1:{sentinel}", "redis+sentinel://"),
        (f"redis+cluster://127.0.0.1:{server.port}", "redis://"),
        (f"redis+cluster://127.0.0.1:{sentinel}", "redis+sentinel://"),
        (f"redis+sentinel://127.0.0.1:{server.port}/holdfast", "no sentinel"),
    ):
        error = refusal(url, port)
        assert isinstance(error, Misconfigured), url
        assert advice in str(error), url


@PORTS
@pytest.mark.req("R37")
def test_a_master_that_the_sentinels_do_not_know(redis_sentinel: RedisSentinel, port: str) -> None:
    hosts = redis_sentinel.url.partition("://")[2].partition("/")[0]
    error = refusal(f"redis+sentinel://{hosts}/unknown?request_timeout=1", port)
    assert "'unknown'" in str(error)


@PORTS
@pytest.mark.req("R37")
def test_a_replica(redis_sentinel: RedisSentinel, port: str) -> None:
    master = redis_sentinel.wait_master()
    replica = next(node for node in redis_sentinel.nodes if node is not master)
    error = refusal(f"redis://127.0.0.1:{replica.port}?request_timeout=1", port)
    assert "READONLY" in str(error)


@PORTS
@pytest.mark.req("R37")
def test_nobody_there_and_too_many_clients(port: str) -> None:
    with RedisServer() as server:
        server.call("CONFIG", "SET", "maxclients", 1)
        with holdfast.connect(server.url) as locks, locks.lock("y"):
            error = refusal(f"{server.url}?request_timeout=1", port)
            assert "max number of clients" in str(error)
        url = f"{server.url}?request_timeout=1"
    assert "cannot be reached" in str(refusal(url, port))


@PORTS
@pytest.mark.req("eviction", "R37")
def test_a_server_that_may_evict_is_warned_about_once(
    port: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}

    async def main(url: str) -> None:
        async with aio.connect(url) as locks:
            for _ in range(3):
                async with locks.lock("x"):
                    pass

    with RedisServer(settings=settings) as server, caplog.at_level(logging.WARNING, "holdfast"):
        if port == "aio":
            asyncio.run(main(server.url))
        else:
            with holdfast.connect(server.url) as locks:
                for _ in range(3):
                    with locks.lock("x"):
                        pass
    assert caplog.text.count("allkeys-lru") == 1
