"""The floor of advisory locks: the two bare statements, prepared where the client can, on an open
connection for each waiter. PostgreSQL by psycopg, MySQL by PyMySQL, as holdfast.

No lease, no token; a connection that died is not noticed. The time limit, without which the last of
many waiters may go without for minutes, is set once: that of the first time it is asked for.
"""

from __future__ import annotations

import importlib
import math
import zlib
from typing import Any
from urllib.parse import urlsplit

from bench.peers.base import Adapter

__all__ = ["connect"]


class Postgres:
    def __init__(self, url: str, name: str) -> None:
        psycopg: Any = importlib.import_module("psycopg")  # as in filelock.py
        self._connection = psycopg.connect(url, autocommit=True)
        self._execute = self._connection.cursor().execute
        self._key = (zlib.crc32(name.encode()),)
        self._late = psycopg.errors.LockNotAvailable
        self._limited = False

    def acquire(self, timeout: float | None) -> object:
        if timeout is not None and not self._limited:
            self._limited = True
            self._execute(f"SET lock_timeout = {max(1, math.ceil(timeout * 1000))}")
        try:
            return self._execute("SELECT pg_advisory_lock(%s::bigint)", self._key, prepare=True)
        except self._late:
            return False

    def release(self) -> None:
        self._execute("SELECT pg_advisory_unlock(%s::bigint)", self._key, prepare=True)

    def __del__(self) -> None:  # with its waiter: a server has not connections for all contests
        self._connection.close()


class MySQL:
    def __init__(self, url: str, name: str) -> None:
        pymysql: Any = importlib.import_module("pymysql")
        where = urlsplit(url)
        self._connection = pymysql.connect(
            host=where.hostname, port=where.port, user=where.username,
            database=where.path.strip("/"), autocommit=True,
        )  # fmt: skip
        self._query = self._connection.query
        self._name = name
        self._take = ""
        self._give = f"SELECT RELEASE_LOCK('{name}')"

    def acquire(self, timeout: float | None) -> object:
        if not self._take:
            limit = 86400 if timeout is None else max(1, math.ceil(timeout))
            self._take = f"SELECT GET_LOCK('{self._name}', {limit})"
        self._query(self._take)
        return self._connection._result.rows[0][0] == 1

    def release(self) -> None:
        self._query(self._give)

    def __del__(self) -> None:  # with its waiter: a server has not connections for all contests
        self._connection.close()


class Raw(Adapter):
    gives_up = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._kind = Postgres if url.startswith("postgresql") else MySQL
        self.version = self._kind.__name__

    def make(self, name: str) -> Any:
        return self._kind(self._url, name)


def connect(target: str, **options: Any) -> Adapter:
    return Raw(target)
