"""Who gets in: TLS, certificates of clients, users, roles, tokens that end."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from tests.faults.etcd import GuardedEtcd, TlsEtcd, make_ca, make_cert

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ca", "other"):
        make_ca(folder, ca)
    for name in ("server", "client"):
        make_cert(folder, "ca", name)
    make_cert(folder, "other", "stranger")
    return folder


@pytest.fixture(scope="module")
def tls(certificates: Path) -> Iterator[TlsEtcd]:
    with TlsEtcd(certificates) as server:
        yield server


def secure(server: TlsEtcd, folder: Path, ca: str = "ca", client: str = "client") -> str:
    url = f"etcds://127.0.0.1:{server.port}?ca={folder}/{ca}.pem"
    return f"{url}&cert={folder}/{client}.pem&key={folder}/{client}.key" if client else url


@pytest.mark.req("R60", "wrong credentials")
def test_tls_with_a_clients_certificate(tls: TlsEtcd, certificates: Path) -> None:
    url = secure(tls, certificates)
    with holdfast.connect(url) as locks, locks.lock("x") as lease:
        assert locks.lock("x").acquire(blocking=False) is None
        assert locks.lock("x").acquire(timeout=1.5) is None  # watched over TLS, too
        lease.renew()

    async def asynchronously() -> None:
        async with aio.connect(url) as locks:
            first = await locks.lock("x").acquire()
            assert first is not None
            waiting = asyncio.create_task(locks.lock("x").acquire(timeout=10))
            while not (await locks.inspect("x"))[0].waiters:
                await asyncio.sleep(0.01)
            await first.release()
            second = await waiting
            assert second is not None
            await second.release()

    asyncio.run(asynchronously())


@pytest.mark.req("R60")
def test_waiters_are_called_over_tls(tls: TlsEtcd, certificates: Path) -> None:
    """One thread reads and writes the stream: many others hand it what they have to say."""
    served: list[int] = []
    with holdfast.connect(secure(tls, certificates)) as locks:

        def turn(number: int) -> None:
            for _ in range(5):
                with locks.lock("crowd", timeout=60):
                    served.append(number)

        threads = [threading.Thread(target=turn, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(served) == 40


@pytest.mark.req("wrong credentials", "law 9")
@pytest.mark.parametrize(("ca", "client"), [("other", "client"), ("ca", ""), ("ca", "stranger")])
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_no_trust_fails_fast(
    tls: TlsEtcd, certificates: Path, ca: str, client: str, port: str
) -> None:
    url = secure(tls, certificates, ca, client)
    begun = time.monotonic()

    async def asynchronously() -> None:
        async with aio.connect(url, request_timeout=60) as locks:
            await locks.lock("x").acquire()

    with pytest.raises(
        Misconfigured, match=r"no trust.*[Cc][Ee][Rr][Tt][Ii][Ff][Ii][Cc][Aa][Tt][Ee]"
    ):
        if port == "aio":
            asyncio.run(asynchronously())
        else:
            with holdfast.connect(url, request_timeout=60) as locks:
                locks.lock("x").acquire()
    assert time.monotonic() - begun < 30


@pytest.mark.req("wrong credentials")
def test_certificates_that_do_not_work(tls: TlsEtcd, certificates: Path) -> None:
    host = f"127.0.0.1:{tls.port}"
    for url, match in (
        (f"etcds://{host}?ca=/nowhere.pem", "cannot be loaded"),
        (f"etcds://{host}?key={certificates}/client.key", "goes with"),
        (f"etcd://{host}?ca={certificates}/ca.pem", "etcds://"),
        (f"etcd://:secret@{host}", "without a user"),
    ):
        with pytest.raises(Misconfigured, match=match) as caught:
            holdfast.connect(url)
        assert "secret" not in str(caught.value)
    # TLS is spoken there, and we do not.
    with (
        holdfast.connect(f"etcd://{host}", request_timeout=1) as locks,
        pytest.raises(Unavailable),
    ):
        locks.lock("x").acquire()


# -- users ----------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[GuardedEtcd]:
    with GuardedEtcd() as server:
        server.enable([("READWRITE", b"locks/", b"locks0")])
        yield server


def at(server: GuardedEtcd, login: str, path: str = "locks") -> str:
    return f"etcd://{login}127.0.0.1:{server.port}/{path}"


@pytest.mark.req("R60", "wrong credentials", "law 9")
def test_a_user_and_a_password(guarded: GuardedEtcd) -> None:
    with holdfast.connect(at(guarded, "holdfast:secret@")) as locks, locks.lock("x"):
        assert locks.lock("x").acquire(timeout=1.5) is None
        assert [info.name for info in locks.inspect()] == ["x"]
    for login, match in (
        ("holdfast:hunter2@", "let us in"),
        ("nobody:hunter2@", "let us in"),
        ("", "let us in"),
    ):
        begun = time.monotonic()
        with holdfast.connect(at(guarded, login), request_timeout=60) as locks:
            with pytest.raises(Misconfigured, match=match) as caught:
                locks.lock("x").acquire()
            assert "hunter2" not in str(caught.value)
            assert "hunter2" not in repr(locks)
        assert time.monotonic() - begun < 30
    with (
        holdfast.connect(at(guarded, "holdfast:secret@", "elsewhere")) as locks,
        pytest.raises(Misconfigured, match="readwrite"),
    ):
        locks.lock("x").acquire()


@pytest.mark.req("R60")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_token_that_the_server_forgot(guarded: GuardedEtcd, port: str) -> None:
    """Tokens are in the memory of the server: after its restart one logs in again, unnoticed,
    holding and waiting."""
    url = at(guarded, "holdfast:secret@")

    async def main(locks: aio.Locks) -> None:
        lease = await locks.lock("x", renew=0.2).acquire()
        assert lease is not None
        waiting = asyncio.create_task(locks.lock("x").acquire(timeout=20))
        while not (await locks.inspect("x"))[0].waiters:
            await asyncio.sleep(0.01)
        guarded.restart()
        await asyncio.sleep(1)
        assert lease.held
        await lease.renew()
        await lease.release()
        handed_over = await waiting
        assert handed_over is not None
        await handed_over.release()

    def blocking() -> None:
        with holdfast.connect(url) as locks, locks.lock("x", renew=0.2) as lease:
            guarded.restart()
            time.sleep(1)
            assert lease.held
            assert locks.lock("x").acquire(blocking=False) is None
            lease.renew()

    async def asynchronously() -> None:
        async with aio.connect(url) as locks:
            await main(locks)

    if port == "aio":
        asyncio.run(asynchronously())
    else:
        blocking()


@pytest.mark.req("R60")
def test_a_token_that_runs_out(tmp_path: Path) -> None:
    """Signed tokens of two seconds: they end while the lock is held and while one waits."""
    subprocess.run(
        ["openssl", "genrsa", "-out", "jwt.key", "2048"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "rsa", "-in", "jwt.key", "-pubout", "-out", "jwt.pub"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    token = f"jwt,pub-key={tmp_path}/jwt.pub,priv-key={tmp_path}/jwt.key,sign-method=RS256,ttl=2s"
    with GuardedEtcd(settings={"auth-token": token}) as server:
        server.enable([("READWRITE", b"locks/", b"locks0")])
        with holdfast.connect(at(server, "holdfast:secret@")) as locks:
            with locks.lock("x", ttl=20, renew=0.5) as lease:
                assert locks.lock("x").acquire(timeout=5) is None
                assert lease.held
                lease.renew()
            with locks.lock("x", ttl=2):
                pass
