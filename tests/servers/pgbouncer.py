"""PgBouncer before a PostgreSQL server: what a pooler does to connections.

Contract: one pool of few server connections; `mode` is PgBouncer's pool_mode. Partner: `sql.py`.
"""

from __future__ import annotations

import shutil
import subprocess

from tests.servers.base import Process
from tests.servers.home import HOST
from tests.servers.install import need
from tests.servers.sql import PostgresServer


class PgBouncer(Process):
    kind = "pgbouncer"
    families = ("pgbouncer", "postgres")
    version_command = ("pgbouncer", "--version")
    user = "postgres"

    def __init__(self, server: PostgresServer, mode: str, size: int = 20) -> None:
        super().__init__()
        self._server = server
        self._mode = mode
        self._size = size

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def configure(self) -> None:
        settings = {
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self._mode,
            "default_pool_size": self._size,
            "max_client_conn": 100,
        }
        lines = [f"{key} = {value}" for key, value in settings.items()]
        where = f"host={HOST} port={self._server.port} dbname=postgres user=postgres"
        path = self.directory / "pgbouncer.ini"
        path.write_text(f"[databases]\npostgres = {where}\n[pgbouncer]\n" + "\n".join(lines) + "\n")
        if account := self._account():
            shutil.chown(path, account.pw_uid, account.pw_gid)

    def command(self) -> list[str]:
        return [need("pgbouncer"), str(self.directory / "pgbouncer.ini")]

    def ping(self, timeout: float = 1.0) -> bool:
        where = f"host={HOST} port={self.port} user=postgres dbname=postgres"
        argv = [need("psql"), "--no-psqlrc", "-qAt", "-d", where, "-c", "SELECT 1"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.stdout.strip() == b"1"
