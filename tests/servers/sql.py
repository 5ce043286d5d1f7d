"""MariaDB and PostgreSQL, each run by its own unprivileged user when we are root.

Contract: `query()` runs one statement as the superuser through the database's own command-line
client and returns the rows as lines with tabs, so tests need no driver to prepare or to inject
faults. Nobody has a password, and everything but loopback is closed. Partner: `base.py`.
"""

from __future__ import annotations

import signal
import subprocess
from abc import abstractmethod
from pathlib import Path

from tests.servers.base import Process, ServerError
from tests.servers.home import HOST, Home
from tests.servers.install import need


class SqlServer(Process):
    """What both have in common."""

    def __init__(
        self,
        home: Home | None = None,
        name: str | None = None,
        *,
        durable: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        super().__init__(home, name)
        self._durable = durable
        self._settings = settings or {}

    @abstractmethod
    def client(self) -> list[str]:
        """The command-line client, connected; the statement follows."""

    def query(self, statement: str, timeout: float = 10.0) -> str:
        """Run one statement: its rows, one a line, columns separated by tabs."""
        done = subprocess.run(
            [*self.client(), statement],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(done.stderr.strip())
        return done.stdout.rstrip("\n")

    def ping(self, timeout: float = 1.0) -> bool:
        try:
            return self.query("SELECT 1", timeout) == "1"
        except (ServerError, subprocess.TimeoutExpired):
            return False


class MariaDBServer(SqlServer):
    """MariaDB with InnoDB, user root, database `holdfast`."""

    kind = "mariadb"
    families = ("mariadb",)
    version_command = ("mariadbd", "--version")
    user = "mysql"
    database = "holdfast"

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/{self.database}"

    def client(self) -> list[str]:
        where = [f"--host={HOST}", f"--port={self.port}", "--protocol=tcp", "--user=root"]
        return [need("mariadb"), "--no-defaults", *where, "--batch", "--skip-column-names", "-e"]

    def prepare(self) -> None:
        self.run(
            [
                need("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={self.data}",
                f"--tmpdir={self.data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                *_UNSAFE_MARIADB,
            ]
        )

    def configure(self) -> None:
        # Run by the server before it listens: root may come from 127.0.0.1, not only "localhost".
        self._init_file.write_text(
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            f"CREATE USER IF NOT EXISTS root@'{HOST}';\n"
            f"GRANT ALL ON *.* TO root@'{HOST}' WITH GRANT OPTION;\n"
        )

    def command(self) -> list[str]:
        settings = {
            "datadir": str(self.data),
            # A server that starts deletes all `#sql` files of its tmpdir. In a folder that others
            # use too, these are their temporary tables, and who misses one dies (signal 11).
            "tmpdir": str(self.data),
            "socket": str(self.data / "mysqld.sock"),
            "pid-file": str(self.data / "mysqld.pid"),
            "bind-address": HOST,
            "port": str(self.port),
            "init-file": str(self._init_file),
            "max-connections": "500",
            "performance-schema": "OFF",
            **self._settings,
        }
        return [
            need("mariadbd"),
            "--no-defaults",
            "--skip-name-resolve",
            *([] if self._durable else _UNSAFE_MARIADB),
            *(f"--{key}={value}" for key, value in settings.items()),
        ]

    @property
    def _init_file(self) -> Path:
        return self.directory / "init.sql"


class PostgresServer(SqlServer):
    """PostgreSQL, user and database `postgres`."""

    kind = "postgres"
    families = ("postgres",)
    version_command = ("postgres", "--version")
    user = "postgres"
    end_signal = signal.SIGINT  # "fast": SIGTERM would wait for every client to leave

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def client(self) -> list[str]:
        where = f"host={HOST} port={self.port} user=postgres dbname=postgres"
        return [need("psql"), "--no-psqlrc", "-qAt", "-F", "\t", "-d", where, "-c"]

    def prepare(self) -> None:
        basics = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]
        self.run(
            [need("initdb"), f"--pgdata={self.data}", *basics, "--no-sync", "--no-instructions"]
        )

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "500",
            **({} if self._durable else _UNSAFE_POSTGRES),
            **self._settings,
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [need("postgres"), "-D", str(self.data), *options]


# They give up what a power failure would cost, nothing that a killed process would: not
# synchronous_commit=off, which forgets commits on a crash (test_sql_restart found it).
_UNSAFE_POSTGRES = {"fsync": "off", "full_page_writes": "off"}
_UNSAFE_MARIADB = [
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--innodb-log-file-size=16M",
    "--sync-binlog=0",
]
