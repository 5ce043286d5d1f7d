"""The floor of locks in SQLite: an upsert to take it and a delete to give it back, and no more.

WAL, synchronous=NORMAL, autocommit, statements prepared once (Python's sqlite3 caches them): what
two durable-enough writes cost from Python, without lease, line, token or crash release.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

UPSERT = (
    "INSERT INTO held (name, owner, fence) VALUES (?, ?, 1)"
    " ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = fence + 1"
)
DELETE = "DELETE FROM held WHERE name = ? AND owner = ?"


class Row:
    def __init__(self, path: Path, name: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS held"
            " (name TEXT PRIMARY KEY, owner TEXT NOT NULL, fence INTEGER NOT NULL) WITHOUT ROWID"
        )
        self._execute, self._values = self._connection.execute, (name, "somebody")

    def acquire(self, timeout: float | None) -> bool:
        self._execute(UPSERT, self._values)
        return True

    def release(self) -> None:
        self._execute(DELETE, self._values)

    def close(self) -> None:
        self._connection.close()


class Statements(Adapter):
    version = f"SQLite {sqlite3.sqlite_version}"

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, "statements.db")
        self._rows: list[Row] = []

    def make(self, name: str) -> Row:
        self._rows.append(Row(self._path, name))
        return self._rows[-1]

    def close(self) -> None:
        for row in self._rows:
            row.close()


def connect(target: str, **options: Any) -> Adapter:
    return Statements(target)
