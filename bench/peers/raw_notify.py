"""The floor of a hand-over through PostgreSQL: one UPDATE that commits itself and calls the next by
NOTIFY; who is called has it. psycopg, and a connection for each waiter, on which it listens.

Who is next was agreed on before: all waiters of a contest stand in a ring, in the order in which
they came. Nobody's death is noticed, nothing is looked at, and nobody new can come.
"""

from __future__ import annotations

import importlib
import select
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

HAND_OVER = (
    "WITH given AS (UPDATE bench_ring SET version = version + 1 WHERE name = %s RETURNING 1)"
    " SELECT pg_notify(%s, '') FROM given"
)


class Place:
    """One waiter's; `name` ends with how many there are."""

    def __init__(self, url: str, name: str) -> None:
        psycopg: Any = importlib.import_module("psycopg")  # as in filelock.py
        self._connection = psycopg.connect(f"{url}?sslmode=disable", autocommit=True)
        self._execute, self._pgconn = self._connection.execute, self._connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self._early: list[Any] = []  # called before it asked
        self._connection.add_notify_handler(self._early.append)
        number_of = name.rpartition("-")[2]
        size = int(number_of) if number_of.isdigit() else 1
        contest, number = divmod(self._counted("joined", name) - 1, size)
        this, first = f"{name}_{contest}_{number}", f"{name}_{contest}_0"
        self._values = name, f"{name}_{contest}_{(number + 1) % size}"
        self._execute(f'LISTEN "{this}"')
        if self._counted("ready", name) % size == 0:
            self._execute("SELECT pg_notify(%s, '')", (first,))

    def _counted(self, what: str, name: str) -> int:
        found = self._execute(
            f"INSERT INTO bench_ring (name, {what}) VALUES (%s, 1)"
            f" ON CONFLICT (name) DO UPDATE SET {what} = bench_ring.{what} + 1 RETURNING {what}",
            (name,),
        )
        return int(found.fetchone()[0])

    def acquire(self, timeout: float | None) -> bool:
        limit = None if timeout is None else max(1, round(timeout * 1000))
        while not self._early:
            if self._pgconn.notifies() is not None:
                return True
            if not self._poll.poll(limit):
                return False
            self._pgconn.consume_input()
        self._early.clear()
        return True

    def release(self) -> None:
        self._execute(HAND_OVER, self._values, prepare=True)

    def __del__(self) -> None:  # with its waiter: a server has not connections for all contests
        self._connection.close()


class Ring(Adapter):
    gives_up = True

    def __init__(self, url: str) -> None:
        self._url = url
        self.version = f"psycopg {version('psycopg')}"
        psycopg: Any = importlib.import_module("psycopg")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(4711)")  # for IF NOT EXISTS alone fails
            connection.execute(
                "CREATE TABLE IF NOT EXISTS bench_ring"
                " (name TEXT PRIMARY KEY, version BIGINT NOT NULL DEFAULT 0,"
                " joined BIGINT NOT NULL DEFAULT 0, ready BIGINT NOT NULL DEFAULT 0)"
            )

    def make(self, name: str) -> Place:
        return Place(self._url, name)


def connect(target: str, **options: Any) -> Adapter:
    return Ring(target)
