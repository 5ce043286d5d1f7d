"""Databases that suffer: `python -m tests.stress postgres`, `... mariadb`. Partner: `store.py`.

Their own fault beside those of every store: sessions are killed. In the end nothing is left but
what a sweep takes away.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import holdfast
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.base import ServerError
from tests.servers.sql import SqlServer
from tests.stress.record import now
from tests.stress.store import Served

__all__ = ["MariaDBStore", "PostgresStore"]


class SqlStore(Served):
    tables: ClassVar[tuple[str, ...]] = ("holdfast", "holdfast_claims")

    def __init__(self, seed: int, calm: float, server: SqlServer) -> None:
        super().__init__(seed, calm, server)
        self._server = server
        self.faults = {"session kills": self._kill_sessions, **self.faults}

    @abstractmethod
    def _kill_sessions(self) -> None: ...

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        with holdfast.connect(self.url, request_timeout=60) as locks:
            deadline = now() + patience
            while True:
                locks.sweep()
                rows = {table: int(self._count(table)) for table in self.tables}
                if not any(rows.values()) or now() >= deadline:
                    break
                time.sleep(0.2)
        for table, number in rows.items():
            if number:
                yield f"{number} rows in {table} after the sweep"

    def _count(self, table: str) -> str:
        return self._server.query(f"SELECT count(*) FROM {table}")

    def figures(self) -> dict[str, object]:
        return {"server": f"{self._server.kind} {self._server.version()}"}


class PostgresStore(SqlStore):
    name = "postgres"
    framing = "postgres"

    def __init__(self, seed: int, calm: float) -> None:
        super().__init__(seed, calm, PostgresServer().start())
        self.url = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/postgres?sslmode=disable"

    def about_locks(self, frame: bytes) -> bool:
        return frame[:1] in (b"P", b"B")

    def _kill_sessions(self) -> None:
        self._server.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'holdfast%'"
        )


class MariaDBStore(SqlStore):
    name = "mariadb"
    framing = "mysql"
    tables = ("holdfast.holdfast", "holdfast.holdfast_claims")

    def __init__(self, seed: int, calm: float) -> None:
        super().__init__(seed, calm, MariaDBServer().start())
        self.url = f"mysql://root@127.0.0.1:{self.proxy.port}/holdfast"

    def about_locks(self, frame: bytes) -> bool:
        return frame[4:5] == b"\x03" and b"`holdfast" in frame

    def _kill_sessions(self) -> None:
        found = self._server.query(
            "SELECT ID FROM information_schema.PROCESSLIST"
            " WHERE DB = 'holdfast' AND ID <> CONNECTION_ID()"
        )
        for number in found.split():
            with contextlib.suppress(ServerError):  # it has ended by itself
                self._server.query(f"KILL {number}")
