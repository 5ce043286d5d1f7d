"""The floor of locks that are locks of rows: SELECT ... FOR UPDATE and COMMIT, as people write it,
on an open connection for each waiter. PostgreSQL by psycopg, MySQL by PyMySQL, as holdfast.

No lease, no token, no time limit; a connection that died is not noticed.
"""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

from bench.peers.base import Adapter

__all__ = ["connect"]

TABLE = "CREATE TABLE IF NOT EXISTS bench_rows (name VARCHAR(255) PRIMARY KEY)"
SELECT = "SELECT name FROM bench_rows WHERE name = %s FOR UPDATE"
INSERT = {
    "postgresql": "INSERT INTO bench_rows VALUES (%s) ON CONFLICT DO NOTHING",
    "mysql": "INSERT IGNORE INTO bench_rows VALUES (%s)",
}


def _connected(url: str) -> Any:
    where = urlsplit(url)
    if where.scheme == "postgresql":
        psycopg: Any = importlib.import_module("psycopg")  # as in filelock.py
        return psycopg.connect(url)
    pymysql: Any = importlib.import_module("pymysql")
    return pymysql.connect(
        host=where.hostname, port=where.port, user=where.username, database=where.path.strip("/")
    )


class Row:
    def __init__(self, url: str, name: str) -> None:
        self._connection = _connected(url)
        self._execute, self._values = self._connection.cursor().execute, (name,)
        self._execute(INSERT[urlsplit(url).scheme], self._values)
        self.release = self._connection.commit
        self.release()

    def acquire(self, timeout: float | None) -> object:
        return self._execute(SELECT, self._values)

    def __del__(self) -> None:  # with its waiter: a server has not connections for all contests
        self._connection.close()


class Raw(Adapter):
    def __init__(self, url: str) -> None:
        self._url = url
        self.version = urlsplit(url).scheme
        connection = _connected(url)
        connection.cursor().execute(TABLE)
        connection.commit()
        connection.close()

    def make(self, name: str) -> Any:
        return Row(self._url, name)


def connect(target: str, **options: Any) -> Adapter:
    return Raw(target)
