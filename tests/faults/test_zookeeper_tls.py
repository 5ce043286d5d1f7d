"""zk:// with TLS: encrypted; who cannot be trusted is refused at once, and why."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.zookeeper import requests
from tests.faults.zookeeper import sessions
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
    for name, into in (("server", "both.pem"), ("unknown", "stranger.pem")):
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text()
        (folder / into).write_text(both)
    return folder


class Terminator:
    """A front that ends TLS, as load balancers do: what a server answers within a moment goes out
    together, in one record."""

    def __init__(self, port: int, certificate: Path) -> None:
        self._upstream = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._server: asyncio.Server | None = None
        self.port = 0

    def __enter__(self) -> Terminator:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(HOST, self._upstream)
        try:
            await asyncio.gather(self._pass(reader, outer, 0), self._pass(inner, writer, 0.02))
        except OSError:
            pass
        finally:
            outer.close()
            writer.close()

    @staticmethod
    async def _pass(
        source: asyncio.StreamReader, target: asyncio.StreamWriter, wait: float
    ) -> None:
        while data := await source.read(1):
            await asyncio.sleep(wait)
            target.write(data + await source.read(16000))
            await target.drain()
        target.close()


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


@pytest.mark.req("R50", "RST mid-command")
def test_answers_that_come_in_one_record(
    certificates: Path, zookeeper_server: ZooKeeperServer
) -> None:
    """kazoo looks for the second when there is a third: a third of the session later."""
    with (
        Terminator(zookeeper_server.port, certificates / "both.pem") as front,
        holdfast.connect(
            f"zk://{HOST}:{front.port}/tls?tls=1&ca={certificates}/ca.pem", request_timeout=3
        ) as locks,
    ):
        for _ in range(5):
            began = time.monotonic()
            with locks.lock("x"):
                pass
            assert time.monotonic() - began < 2


@pytest.mark.req("R50", "wrong credentials")
def test_one_host_that_is_not_trusted_is_left_for_the_others(
    certificates: Path, zookeeper_server: ZooKeeperServer
) -> None:
    with (
        Terminator(zookeeper_server.port, certificates / "both.pem") as good,
        Terminator(zookeeper_server.port, certificates / "stranger.pem") as stranger,
    ):
        hosts = f"{HOST}:{stranger.port},{HOST}:{good.port}"
        for _ in range(8):  # they are tried in any order
            with (
                holdfast.connect(f"zk://{hosts}/tls?tls=1&ca={certificates}/ca.pem") as locks,
                locks.lock("x", timeout=10) as lease,
            ):
                assert lease.held
        with (
            holdfast.connect(
                f"zk://{HOST}:{stranger.port}/tls?tls=1&ca={certificates}/ca.pem"
            ) as locks,
            pytest.raises(Misconfigured, match="certificate"),
        ):
            locks.lock("x").acquire()


@pytest.mark.req("R50", "server hangs")
def test_a_connection_is_given_up_in_the_middle_of_its_answers(
    port: int, certificates: Path
) -> None:
    """What is still encrypted must not be taken for an answer: that would end the session."""
    url = f"zk://{HOST}:{port}/tls?tls=1&ca={certificates}/ca.pem"
    with holdfast.connect(url) as locks, locks.lock("x", timeout=10) as lease:
        (session,) = sessions(locks)
        for _ in range(30):
            session.ask(*(requests.get_children("/") for _ in range(300)))
            time.sleep(0.002)
            session.wire.drop()
            assert lease.renew() > 0
        assert lease.held
