"""pals: PostgreSQL's advisory locks on an SQLAlchemy engine's pool, with a time limit set anew for
each acquire. Its pool is made as large as the waiters need."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

pals: Any = importlib.import_module("pals")  # as in filelock.py
sqlalchemy: Any = importlib.import_module("sqlalchemy")

LIMIT = 86_400_000


class Pals(Adapter):
    version = f"pals {version('pals')}"

    def __init__(self, url: str) -> None:
        place = url.replace("postgresql:", "postgresql+psycopg:")
        self._engine = sqlalchemy.create_engine(place, pool_size=200)
        self._locker = pals.Locker(
            "bench", create_engine_callable=lambda: self._engine, acquire_timeout_default=LIMIT
        )

    def make(self, name: str) -> Any:
        return Lock(self._locker.lock(name))

    def close(self) -> None:
        self._engine.dispose()


class Lock:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float | None) -> object:
        return self._lock.acquire()


def connect(target: str, **options: Any) -> Adapter:
    return Pals(target)
