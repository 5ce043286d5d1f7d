"""Bugs that were found in how the etcd backend logs in and connects, on real members."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.etcd import loops, threads
from holdfast.testing import FaultProxy
from tests.faults.etcd import GuardedEtcd, in_threads
from tests.servers import EtcdServer
from tests.waiting import settled, until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
def proxy(server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy:
        yield proxy


# -- users ----------------------------------------------------------------------------------------


def _logins(proxy: FaultProxy) -> int:
    return sum(b"/etcdserverpb.Auth/Authenticate" in one for one in proxy.frames("to_server"))


@pytest.mark.req("R60", "law 6")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_one_logs_in_for_all(port: str) -> None:
    """A login costs etcd a tenth of a second of its processor: hundreds at once are an outage."""
    with GuardedEtcd() as server:
        server.enable([("READWRITE", b"locks/", b"locks0")])
        with FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy:
            url = f"etcd://holdfast:secret@{proxy.host}:{proxy.port}/locks"

            async def main() -> None:
                async with aio.connect(url) as locks:
                    for _ in range(2):
                        leases = await asyncio.gather(
                            *(locks.lock(f"n{n}").acquire() for n in range(100))
                        )
                        assert all(leases)
                        await asyncio.gather(*(lease.release() for lease in leases if lease))
                        server.restart()  # forgets its tokens

            def blocking() -> None:
                with holdfast.connect(url) as locks:

                    def take(number: int) -> None:
                        with locks.lock(f"n{number}"):
                            pass

                    for _ in range(2):
                        for thread in in_threads(30, take):
                            thread.join()
                        server.restart()

            if port == "aio":
                asyncio.run(main())
            else:
                blocking()
            assert 2 <= _logins(proxy) <= 4, "one at the start, one after each restart"
            # And all are told if the password is wrong, after one try each time.
            proxy.forget()
            wrong = url.replace("secret", "hunter2")

            async def refused() -> None:
                async with aio.connect(wrong) as locks:
                    results = await asyncio.gather(
                        *(locks.lock(f"n{n}").acquire() for n in range(20)), return_exceptions=True
                    )
                    assert {type(one) for one in results} == {Misconfigured}

            asyncio.run(refused())
            assert _logins(proxy) <= 2


@pytest.mark.req("R60")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_token_is_refused_and_the_lease_is_kept_alive_all_the_same(port: str) -> None:
    """etcd keeps a lease alive for whoever asks. An attempt that asks for that, too, was half
    refused: nobody logged in again, and it said that the password was wrong."""
    with GuardedEtcd(settings={"bcrypt-cost": "4"}) as server:
        server.enable([("READWRITE", b"locks/", b"locks0")])
        url = f"etcd://holdfast:secret@127.0.0.1:{server.port}/locks"

        async def main() -> None:
            async with aio.connect(url) as locks:
                lease = await locks.lock("a", ttl=60, renew=False).acquire()
                server.restart()  # forgets its tokens
                second = await locks.lock("b", ttl=60, renew=False).acquire()
                assert lease is not None
                assert second is not None

        if port == "aio":
            asyncio.run(main())
        else:
            with holdfast.connect(url) as locks:
                lease = locks.lock("a", ttl=60, renew=False).acquire()
                server.restart()
                second = locks.lock("b", ttl=60, renew=False).acquire()
                assert lease is not None
                assert second is not None


@pytest.mark.req("R60", "R9", "law 6")
def test_a_stream_whose_token_ran_out(tmp_path: Path) -> None:
    """etcd takes no new watches on it, and says "permission denied". Who waits for permits asked
    again and again, without a pause."""
    for command in (
        ["openssl", "genrsa", "-out", "jwt.key", "2048"],
        ["openssl", "rsa", "-in", "jwt.key", "-pubout", "-out", "jwt.pub"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    token = f"jwt,pub-key={tmp_path}/jwt.pub,priv-key={tmp_path}/jwt.key,sign-method=RS256,ttl=2s"
    with (
        GuardedEtcd(settings={"auth-token": token, "bcrypt-cost": "4"}) as server,
        FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy,
    ):
        server.enable([("READWRITE", b"locks/", b"locks0")])
        url = f"etcd://holdfast:secret@{proxy.host}:{proxy.port}/locks"
        with holdfast.connect(url) as locks:
            first = locks.semaphore("s", 1, ttl=60).acquire()
            assert first is not None
            assert locks.semaphore("s", 1, ttl=60).acquire(timeout=0.3) is None  # opens the stream
            time.sleep(2.5)
            before = proxy.requests
            assert locks.semaphore("s", 1, ttl=60).acquire(timeout=1.5) is None
            assert proxy.requests - before < 20
            # And watches work again: a hand-over waits for no heartbeat.
            served: list[float] = []

            def wait(_: int) -> None:
                with locks.semaphore("s", 1, ttl=60, timeout=40):
                    served.append(time.monotonic())

            (thread,) = in_threads(1, wait)
            until(lambda: locks.inspect("s")[0].waiters, "it waits")
            looks = settled(lambda: proxy.requests)
            time.sleep(0.5)
            assert proxy.requests - looks <= 1, "it is called, and need not ask"
            begun = time.monotonic()
            first.release()
            thread.join()
            assert served[0] - begun < 15


# -- connections ----------------------------------------------------------------------------------


@pytest.mark.req("R60", "B3")
def test_more_calls_than_the_server_allows_at_a_time() -> None:
    """Over TLS, 250 by default: the others were refused."""
    with (
        EtcdServer(settings={"max-concurrent-streams": "4"}) as server,
        FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy,
    ):

        async def main() -> None:
            async with aio.connect(f"etcd://{proxy.host}:{proxy.port}") as locks:
                leases = await asyncio.gather(*(locks.lock(f"n{n}").acquire() for n in range(200)))
                assert all(leases)
                done = await asyncio.gather(*(lease.release() for lease in leases if lease))
                assert all(done)
                assert proxy.requests <= 410  # nothing was refused, and asked again

        asyncio.run(main())
        with holdfast.connect(server.url) as locks:
            leases = [locks.lock(f"n{n}").acquire() for n in range(3)]
            assert all(leases)


@pytest.mark.req("law 2", "B3")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_connection_that_was_cut_silently_while_nobody_used_it(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    """As firewalls do. It had all the time there is, and the lock was `Unavailable`."""
    for module in (threads, loops):
        monkeypatch.setattr(module, "STALE", 0.0)
    monkeypatch.setattr(threads, "FRESH", 0.0)
    url = f"etcd://{proxy.host}:{proxy.port}"

    def cut() -> None:
        for link in proxy.connections:
            proxy.blackhole(only=link)

    async def main() -> None:
        async with aio.connect(url) as locks:
            async with locks.lock("cut", ttl=60):
                cut()
            lease = await locks.lock("cut", ttl=60).acquire(timeout=5)
            assert lease is not None
            cut()  # and many at once do not ask for a sign of life each
            proxy.forget()
            leases = await asyncio.gather(*(locks.lock(f"cut {n}").acquire() for n in range(20)))
            assert all(leases)
            assert sum(frame.count(b"holdfast") for frame in proxy.frames("to_server")) < 5

    if port == "aio":
        asyncio.run(main())
        return
    with holdfast.connect(url) as locks:
        with locks.lock("cut", ttl=60):
            cut()
        lease = locks.lock("cut", ttl=60).acquire(timeout=5)
        assert lease is not None
        cut()
        assert lease.release()


@pytest.fixture
def black_hole() -> Iterator[tuple[str, int]]:
    """An address where nobody answers: its queue is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        full: list[socket.socket] = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(listening.getsockname())
            full.append(sock)
        time.sleep(0.1)
        yield listening.getsockname()
        for sock in full:
            sock.close()


@pytest.mark.req("law 4", "B3")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_name_with_several_addresses(
    server: EtcdServer, black_hole: tuple[str, int], monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    """Each had all the time there is, so that three silent ones took three times as long; and one
    that answers came too late."""
    addresses: list[tuple[str, int]] = []
    look_up = socket.getaddrinfo

    def found(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "several.test":
            return look_up(host, *args, **kwargs)
        if kwargs.get("flags"):
            raise socket.gaierror("no address")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", one) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)

    def take() -> None:
        if port == "sync":
            with holdfast.connect("etcd://several.test", request_timeout=4) as locks:
                lease = locks.lock("several").acquire()
                assert lease is not None
                lease.release()
            return

        async def main() -> None:
            async with aio.connect("etcd://several.test", request_timeout=4) as locks:
                lease = await locks.lock("several").acquire()
                assert lease is not None
                await lease.release()

        asyncio.run(main())

    addresses = [black_hole] * 3
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        take()
    assert time.monotonic() - begun < 10  # three times as long would be twelve
    addresses = [black_hole, ("127.0.0.1", server.port)]
    take()


@pytest.mark.req("R60")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_server_that_hangs_up_in_the_handshake(port: str) -> None:
    """It is being restarted, say: that is no question of trust, and passes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        over = threading.Event()

        def hang_up() -> None:
            while not over.is_set():
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.recv(10_000)
                connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        url = f"etcds://127.0.0.1:{listening.getsockname()[1]}"

        async def main() -> None:
            async with aio.connect(url, request_timeout=1) as locks:
                await locks.lock("x").acquire()

        with pytest.raises(Unavailable):
            if port == "aio":
                asyncio.run(main())
            else:
                with holdfast.connect(url, request_timeout=1) as locks:
                    locks.lock("x").acquire()
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)
