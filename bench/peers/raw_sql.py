"""The floor of locks in a database: two single-row UPDATEs that commit themselves, by key, on a
connection that is open; prepared where the client can (psycopg), else as text (PyMySQL).

They look at nothing, so they cannot tell who holds.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from bench.peers.base import Adapter

__all__ = ["connect"]

UPDATE = "UPDATE bench_floor SET version = version + 1, owner = %s WHERE name = %s"


class Row:
    def __init__(self, cursor: Any, name: str, options: dict[str, Any]) -> None:
        cursor.execute("DELETE FROM bench_floor WHERE name = %s", (name.encode(),))
        cursor.execute("INSERT INTO bench_floor VALUES (%s, 1, %s)", (name.encode(), b""))
        self._execute, self._options = cursor.execute, options
        self._taken, self._given = (b"somebody", name.encode()), (b"", name.encode())

    def acquire(self, timeout: float | None) -> bool:
        self._execute(UPDATE, self._taken, **self._options)
        return True

    def release(self) -> None:
        self._execute(UPDATE, self._given, **self._options)


class RawSql(Adapter):
    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._options: dict[str, Any] = {}
        if place.scheme == "postgresql":
            psycopg: Any = importlib.import_module("psycopg")  # as in filelock.py
            self.version = f"psycopg {version('psycopg')}"
            self._connection = psycopg.connect(f"{url}?sslmode=disable", autocommit=True)
            self._options["prepare"] = True
            kind = "BYTEA"
        else:
            pymysql: Any = importlib.import_module("pymysql")
            self.version = f"PyMySQL {version('PyMySQL')}"
            self._connection = pymysql.connect(
                host=place.hostname,
                port=place.port,
                user=place.username,
                database=place.path.strip("/"),
                autocommit=True,
            )
            kind = "VARBINARY(255)"
        with self._connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS bench_floor"
                f" (name {kind} PRIMARY KEY, version BIGINT NOT NULL, owner {kind} NOT NULL)"
            )

    def make(self, name: str) -> Row:
        return Row(self._connection.cursor(), name, self._options)

    def close(self) -> None:
        self._connection.close()
        super().close()


def connect(target: str, **options: Any) -> Adapter:
    return RawSql(target)
