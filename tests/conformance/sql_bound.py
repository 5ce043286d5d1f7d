"""The strategies of connection-bound locks: `advisory` and `for-update` on both databases.

The store's half of a fault is the end of the holder's connection: that is what expiry, eviction and
deletion by hand come to. Partner: `sql.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import Any

from holdfast.backends.postgres.speech import hashed
from tests.conformance.sql import MySQLStrategy, PostgresStrategy, SqlStrategy


class BoundStrategy(SqlStrategy):
    short_ttl = 0.5
    claim_window = 0.0
    tables = ()
    kind: str

    @property
    def options(self) -> str:  # type: ignore[override]
        return f"strategy={self.kind}&max_connections=40"

    def holders(self, name: str) -> list[int]:
        """The numbers of the connections that hold it."""
        raise NotImplementedError

    def waiting(self, name: str) -> list[int]:
        raise NotImplementedError

    def ours(self) -> list[tuple[Any, ...]]:
        """Connections of clients that hold or wait."""
        raise NotImplementedError

    def end(self, number: int) -> None:
        raise NotImplementedError

    def expire_now(self, name: str) -> None:
        for number in self.holders(name):
            self.end(number)

    def steal(self, name: str) -> None:
        waiting, holding = self.waiting(name), self.holders(name)
        for number in waiting + holding:  # else the first of the line would hold meanwhile
            self.end(number)

    def line(self, name: str) -> int:
        return len(self.waiting(name))

    def leftovers(self) -> list[str]:
        return [str(row) for row in self.ours()]


class PostgresBound(BoundStrategy, PostgresStrategy):
    def end(self, number: int) -> None:
        self.say("SELECT pg_terminate_backend(%s, 5000)", (number,))

    def ours(self) -> list[tuple[Any, ...]]:
        return self.say(
            "SELECT pid, locktype, mode FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE usename = 'app' AND locktype IN ('advisory', 'transactionid', 'tuple')"
        )


class PostgresAdvisory(PostgresBound):
    name = "postgres-advisory"
    kind = "advisory"

    def _locks(self, name: str, granted: bool) -> list[int]:
        key = hashed("holdfast", name) % (1 << 64)
        rows = self.say(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
            " AND objid = %s AND granted = %s",
            (key >> 32, key & 0xFFFFFFFF, granted),
        )
        return [row[0] for row in rows]

    def holders(self, name: str) -> list[int]:
        return self._locks(name, True)

    def waiting(self, name: str) -> list[int]:
        return self._locks(name, False)


class PostgresForUpdate(PostgresBound):
    name = "postgres-for-update"
    kind = "for-update"

    def _open(self) -> list[tuple[int, bool]]:
        """Whose transactions are open, and whether they wait: of which row, nobody tells."""
        rows = self.say(
            "SELECT pid, coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity"
            " WHERE usename = 'app' AND xact_start IS NOT NULL ORDER BY xact_start"
        )
        return [(row[0], row[1]) for row in rows]

    def holders(self, name: str) -> list[int]:
        return [pid for pid, waits in self._open() if not waits]

    def waiting(self, name: str) -> list[int]:
        return [pid for pid, waits in self._open() if waits]


class MySQLBound(BoundStrategy, MySQLStrategy):
    def end(self, number: int) -> None:
        with contextlib.suppress(Exception):
            self.say(f"KILL {number}")

    def about_locks(self, frame: bytes) -> bool:
        words = (b"GET_LOCK", b"RELEASE_LOCK", b"`holdfast", b"COMMIT", b"SELECT 1")
        return frame[4:5] == b"\x03" and any(word in frame for word in words)

    def processes(self, state: str) -> list[int]:
        rows = self.say(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'app' AND STATE = %s",
            (state,),
        )
        return [row[0] for row in rows]


class MySQLAdvisory(MySQLBound):
    name = "mysql-advisory"
    kind = "advisory"

    @property
    def options(self) -> str:  # type: ignore[override]
        return f"{super().options}&fence=1"

    def _key(self, name: str) -> str:
        whole = f"holdfast\0holdfast\0{name}"
        return "holdfast:" + hashlib.sha256(whole.encode()).hexdigest()[:40]

    def holders(self, name: str) -> list[int]:
        found = self.say("SELECT IS_USED_LOCK(%s)", (self._key(name),))[0][0]
        return [] if found is None else [found]

    def waiting(self, name: str) -> list[int]:
        return self.processes("User lock")

    def ours(self) -> list[tuple[Any, ...]]:
        names = ["x0", "x1", "x2", "y", "x"]
        held = [(name, number) for name in names for number in self.holders(name)]
        return [*held, *((number,) for number in self.waiting("x"))]


class MySQLForUpdate(MySQLBound):
    name = "mysql-for-update"
    kind = "for-update"

    def _transactions(self) -> list[int]:
        time.sleep(0.11)  # else InnoDB repeats what it said before
        rows = self.say(
            "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX"
            " WHERE trx_mysql_thread_id <> CONNECTION_ID()"
        )
        return [row[0] for row in rows]

    def holders(self, name: str) -> list[int]:
        waiting = self.waiting(name)
        return [number for number in self._transactions() if number not in waiting]

    def waiting(self, name: str) -> list[int]:
        rows = self.say(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'app' AND"
            " INFO LIKE '%%FOR UPDATE%%' AND INFO NOT LIKE '%%NOWAIT%%'",
            (),
        )
        return [row[0] for row in rows]

    def ours(self) -> list[tuple[Any, ...]]:
        return [(number,) for number in self._transactions()]
