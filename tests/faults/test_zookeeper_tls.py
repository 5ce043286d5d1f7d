"""zk:// with TLS: encrypted; who cannot be trusted is refused at once, and why."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST

pytestmark = pytest.mark.servers


def openssl(*words: str, cwd: Path) -> None:
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate by it, and an authority that nobody knows."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
    for name in ("ca", "unknown"):
        openssl(
            "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-subj", f"/CN={name}", "-days", "2", cwd=folder,
        )  # fmt: skip
    openssl(
        "req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=zk", cwd=folder
    )
    (folder / "names").write_text(f"subjectAltName=IP:{HOST}\n")
    openssl(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
        "-extfile", "names", "-out", "server.pem", cwd=folder,
    )  # fmt: skip
    both = (folder / "server.key").read_text() + (folder / "server.pem").read_text()
    (folder / "both.pem").write_text(both)
    return folder


@pytest.fixture(scope="module")
def port(certificates: Path) -> Iterator[int]:
    server = ZooKeeperServer()
    port = server.home.reserve_port()
    server.settings |= {
        "secureClientPort": str(port),
        "secureClientPortAddress": HOST,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(certificates / "both.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(certificates / "ca.pem"),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none",
    }
    with server:
        yield port


@pytest.mark.req("R50")
def test_locks_over_tls(port: int, certificates: Path) -> None:
    url = f"zk://{HOST}:{port}/tls?tls=1&ca={certificates}/ca.pem"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        for _ in range(20):
            with here.lock("x", timeout=10) as lease:
                assert lease.held
                assert there.lock("x").acquire(blocking=False) is None


@pytest.mark.req("R50", "B3")
def test_asyncio_over_tls(port: int, certificates: Path) -> None:
    async def main() -> None:
        url = f"zk://{HOST}:{port}/tls?tls=1&ca={certificates}/ca.pem"
        async with aio.connect(url) as locks, locks.lock("x", timeout=10) as lease:
            await lease.renew()

    asyncio.run(main())


@pytest.mark.req("wrong credentials", "R50")
@pytest.mark.parametrize("ca", ["unknown.pem", None])
def test_an_authority_that_is_not_known(port: int, certificates: Path, ca: str | None) -> None:
    options = {} if ca is None else {"ca": str(certificates / ca)}
    with holdfast.connect(f"zk://a:s3cret@{HOST}:{port}/tls", tls=True, **options) as locks:
        begun = time.monotonic()
        with pytest.raises(Misconfigured, match="certificate") as refused:
            locks.lock("x").acquire()
        assert time.monotonic() - begun < 3
        assert "s3cret" not in str(refused.value)


@pytest.mark.req("wrong credentials", "R50")
def test_the_certificate_must_name_the_host(port: int, certificates: Path) -> None:
    url = f"zk://localhost:{port}/tls?tls=1&ca={certificates}/ca.pem"
    with holdfast.connect(url) as locks, pytest.raises(Misconfigured, match="certificate"):
        locks.lock("x").acquire()
    with holdfast.connect(url, verify_host=False) as locks, locks.lock("x", timeout=10):
        pass


@pytest.mark.req("R50")
def test_tls_where_there_is_none(port: int, zookeeper_server: ZooKeeperServer) -> None:
    with holdfast.connect(
        f"zk://{HOST}:{zookeeper_server.port}/tls", tls=True, request_timeout=1
    ) as locks:
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            locks.lock("x").acquire()
        assert time.monotonic() - begun < 5
