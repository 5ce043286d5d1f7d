"""sqlalchemy-dlock: advisory locks on a connection that its user keeps: one for each waiter.

Without a time limit it asks MySQL's GET_LOCK for a negative one, which MariaDB refuses: it has one.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import FOR_EVER, Adapter

__all__ = ["connect"]

dlock: Any = importlib.import_module("sqlalchemy_dlock")  # as in filelock.py
sqlalchemy: Any = importlib.import_module("sqlalchemy")

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


class Lock:
    def __init__(self, connection: Any, name: str) -> None:
        self._lock = dlock.create_sadlock(connection, name)
        self.release = self._lock.release
        self._limit = FOR_EVER if connection.engine.name in ("mysql", "mariadb") else None

    def acquire(self, timeout: float | None) -> object:
        return self._lock.acquire(timeout=self._limit)


class Dlock(Adapter):
    version = f"sqlalchemy-dlock {version('sqlalchemy-dlock')}"

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition(":")
        self._engine = sqlalchemy.create_engine(f"{DRIVERS[scheme]}:{rest}", pool_size=200)
        self._connections: list[Any] = []

    def make(self, name: str) -> Lock:
        self._connections.append(self._engine.connect())
        return Lock(self._connections[-1], name)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._engine.dispose()


def connect(target: str, **options: Any) -> Adapter:
    return Dlock(target)
