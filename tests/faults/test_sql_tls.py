"""mysql:// and postgresql:// with TLS: encrypted and checked; who cannot be trusted is refused at
once, and why. On both ports."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, aio
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.home import HOST
from tests.servers.sql import SqlServer
from tests.servers.tls import Certificates

pytestmark = [pytest.mark.servers, pytest.mark.req("wrong credentials")]

LONG = 10.0
PATIENT = 20.0
"""Seconds for which who cannot be reached is asked again, and who refuses us is not."""

ANY, CERTIFIED = "encrypted", "certified"
"""Users: the server takes the one only by TLS, the other only with a certificate."""


class Files:
    """Certificates for one name of this host, an authority that nobody knows, and its client."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.ours = Certificates(folder, names=(HOST,))
        (folder / "other").mkdir()
        self.others = Certificates(folder / "other")
        for certificates in (self.ours, self.others):
            certificates.client_key.chmod(0o600)  # libpq insists

    def given_to(self, server: SqlServer) -> dict[str, str]:
        """What the server needs, in its own folder: of the certificates, it trusts its authority's
        clients."""
        files = {"ca": self.ours.ca, "cert": self.ours.server, "key": self.ours.server_key}
        given: dict[str, str] = {}
        for name, source in files.items():
            path = server.directory / f"{name}.pem"
            shutil.copyfile(source, path)
            path.chmod(0o600)
            if account := server._account():
                shutil.chown(path, account.pw_uid, account.pw_gid)
            given[name] = str(path)
        return given


class SecureMariaDB(MariaDBServer):
    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    def configure(self) -> None:
        super().configure()
        for name, path in self.files.given_to(self).items():
            self._settings[f"ssl-{name}"] = path
        with self._init_file.open("a") as file:
            for user, needs in ((ANY, "SSL"), (CERTIFIED, "X509")):
                file.write(f"CREATE USER IF NOT EXISTS {user}@'{HOST}' REQUIRE {needs};\n")
                file.write(f"GRANT ALL ON {self.database}.* TO {user}@'{HOST}';\n")


class SecurePostgres(PostgresServer):
    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    def configure(self) -> None:
        super().configure()
        for name, path in self.files.given_to(self).items():
            self._settings[f"ssl_{name}_file"] = path
        rules = self.directory / "hba.conf"
        rules.write_text(
            f"host all postgres {HOST}/32 trust\n"
            f"hostssl all {ANY} {HOST}/32 trust\n"
            f"hostssl all {CERTIFIED} {HOST}/32 trust clientcert=verify-ca\n"
        )
        self._settings |= {"ssl": "on", "hba_file": str(rules)}

    def start(self) -> SecurePostgres:
        super().start()
        for user in (ANY, CERTIFIED):
            self.query(f"CREATE ROLE {user} LOGIN")
            self.query(f"GRANT ALL ON SCHEMA public TO {user}")
        return self


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls") / "files")


@pytest.fixture(scope="module", params=["mysql", "postgresql"])
def server(request: pytest.FixtureRequest, files: Files) -> Iterator[SqlServer]:
    make = SecureMariaDB if request.param == "mysql" else SecurePostgres
    with make(files) as server:
        yield server


class Way:
    """How a server is reached: URLs with what TLS needs in them."""

    def __init__(self, server: SqlServer, files: Files, port: str) -> None:
        self.mysql = isinstance(server, MariaDBServer)
        self.files = files
        self._server = server
        self._asynchronous = port == "aio"

    def url(
        self,
        user: str = ANY,
        *,
        host: str = HOST,
        ca: Path | None = None,
        client: Certificates | None = None,
        more: str = "",
    ) -> str:
        scheme, database = ("mysql", "holdfast") if self.mysql else ("postgresql", "postgres")
        names = ("tls_ca", "tls_cert", "tls_key")
        if not self.mysql:
            names, more = ("sslrootcert", "sslcert", "sslkey"), f"&sslmode=verify-full{more}"
        said = f"{names[0]}={ca or self.files.ours.ca}"
        if client is not None:
            said += f"&{names[1]}={client.client}&{names[2]}={client.client_key}"
        return f"{scheme}://{user}@{host}:{self._server.port}/{database}?table={user}&{said}{more}"

    def hold(self, url: str) -> None:
        """Take it, have another client wait for it, and hand it over."""
        if not self._asynchronous:
            with holdfast.connect(url, request_timeout=PATIENT) as here:
                lease = here.lock("x").acquire()
                assert lease is not None
                lease.renew()
                assert here.lock("x").acquire(timeout=1) is None  # with a connection of its own
                assert lease.release() is True
            return

        async def hold() -> None:
            async with (
                aio.connect(url, request_timeout=PATIENT) as here,
                aio.connect(url, request_timeout=PATIENT) as there,
            ):
                lease = await here.lock("x").acquire()
                assert lease is not None
                await lease.renew()
                waiting = asyncio.create_task(there.lock("x").acquire(timeout=LONG))
                await asyncio.sleep(0.05)
                assert await lease.release() is True
                handed_over = await waiting
                assert handed_over is not None
                assert await handed_over.release() is True

        asyncio.run(hold())

    def refused(self, url: str, *words: str) -> None:
        with pytest.raises(Misconfigured) as caught:
            self.hold(url)
        said = str(caught.value)
        assert any(word in said for word in words), said
        del caught
        gc.collect()  # an open connection that was forgotten would be said here


@pytest.fixture(params=["sync", "aio"])
def way(request: pytest.FixtureRequest, server: SqlServer, files: Files) -> Way:
    return Way(server, files, request.param)


@pytest.mark.parametrize("strategy", ["row", "advisory"])
def test_locks_work_as_without(way: Way, strategy: str) -> None:
    way.hold(way.url(more=f"&strategy={strategy}"))


def test_a_server_of_an_unknown_authority_is_refused(way: Way) -> None:
    way.refused(way.url(ca=way.files.others.ca), "certificate verify failed")


def test_a_server_of_another_name_is_refused(way: Way) -> None:
    way.refused(way.url(host="localhost"), "localhost")


def test_a_client_has_a_certificate(way: Way) -> None:
    way.hold(way.url(CERTIFIED, client=way.files.ours))


def test_a_client_without_one_is_refused(way: Way) -> None:
    way.refused(way.url(CERTIFIED), "certificate", "Access denied")


def test_a_client_of_an_unknown_authority_is_refused(way: Way) -> None:
    way.refused(way.url(CERTIFIED, client=way.files.others), "unknown ca")


def test_files_that_are_none(way: Way, tmp_path: Path) -> None:
    way.refused(way.url(ca=tmp_path / "missing.pem"), "missing.pem", "No such file")


def test_a_user_that_must_encrypt_and_does_not_is_refused(way: Way) -> None:
    plain = way.url().partition("?")[0] + ("" if way.mysql else "?sslmode=disable")
    way.refused(plain, "Access denied", "no pg_hba.conf entry", "no encryption")


@pytest.mark.parametrize("port", ["sync", "aio"])
@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_a_server_without_tls_is_refused(
    request: pytest.FixtureRequest, files: Files, kind: str, port: str
) -> None:
    server: Any = request.getfixturevalue(f"{kind}_server")
    way = Way(server, files, port)
    user = "root" if way.mysql else "postgres"
    way.refused(way.url(user), "SSL", "TLS")
