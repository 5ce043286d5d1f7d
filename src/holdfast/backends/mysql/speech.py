"""MySQL's and MariaDB's words for `advisory` and `for-update`.

Contract: `sql/speech.py`. GET_LOCK's names are the whole server's, have 64 characters at most and
no case: a name becomes a hash of 160 bits, together with the database and the table's name.

Tokens are `greatest(last + 1, microseconds of the database)`, in one of a few rows that a name's
hash chooses: committed before anybody sees them, and later than whatever a server that lost its
memory gave out before (law 7). A transaction cannot commit its token without giving up its lock,
so `for-update` has them made by another session and then proves that its own is alive.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence

from holdfast.backends.mysql.dialect import NOW, MySQL
from holdfast.backends.sql.bound import SLICE
from holdfast.backends.sql.session import Result, Session, Statement
from holdfast.backends.sql.speech import Named, Taken, Verdict
from holdfast.errors import Misconfigured
from holdfast.types import Claim, Mode

__all__ = ["MARK", "AdvisorySpeech", "ForUpdateSpeech"]

quoted = MySQL().quote

CLOCK: Statement = (f"SELECT {NOW}", ())

LEAST = 4
"""Seconds: a session between two requests over a slow line is not idle yet."""

MARK = "holdfast:session:"
"""What the name of a lock begins with that a session holds to be told from others."""

SLOTS = 64
"""Rows that tokens come from: bounded, and few names share one."""

EXCLUSIVE = frozenset({Mode.EXCLUSIVE})


@functools.lru_cache(maxsize=4096)
def key_of(database: str, table: str, name: str) -> str:
    """What GET_LOCK is told."""
    whole = f"{database}\0{table}\0{name}"
    return "holdfast:" + hashlib.sha256(whole.encode()).hexdigest()[:40]


class MySQLSpeech:
    """What both strategies share."""

    modes = EXCLUSIVE
    ping: Statement = ("SELECT 1", ())
    cancelled = frozenset({"1317", "1969", "3024"})  # KILL QUERY, and time limits of statements
    absent = frozenset({"1146"})

    def __init__(self, table: str, database: str, pooler: bool) -> None:
        self._table = table
        self._database = database
        self._fences = quoted(f"{table}_fence")
        self._cluster_will_do = pooler

    def arrange(self, session: Session, ttl: float) -> list[Statement]:
        limits = max(math.ceil(ttl) + 1, LEAST), math.ceil(SLICE)
        if session.settings.get("limits") == limits:
            return []
        session.settings["limits"] = limits
        session.lasts = min(1.0, ttl / 2)
        return [("SET SESSION wait_timeout = %s, innodb_lock_wait_timeout = %s", limits)]

    def cancel(self, session: Named) -> Statement:
        return "KILL QUERY %s", (session.number,)

    def interrupted(self, results: Sequence[Result]) -> bool:
        return False

    def kill(self, session: Named) -> Statement:
        # Numbers begin again when the server does: the address tells them apart, or the named lock.
        if session.mark.startswith(MARK):
            text = "SELECT ID FROM (SELECT IS_USED_LOCK(%s) AS ID) AS used WHERE ID IS NOT NULL"
            return text, (session.mark,)
        text = "SELECT ID FROM information_schema.PROCESSLIST WHERE ID = %s AND HOST = %s"
        return text, (session.number, session.mark)

    def finish(self, found: int) -> Statement:
        return "KILL CONNECTION %s", (found,)

    def _slot(self, claim: Claim) -> int:
        return hashlib.sha256(claim.name.encode()).digest()[0] % SLOTS

    def _bump(self, claim: Claim, condition: str, *values: str) -> Statement:
        text = (
            f"INSERT INTO {self._fences} (slot, fence)"
            f" SELECT %s, LAST_INSERT_ID({NOW}) FROM DUAL{condition}"
            f" ON DUPLICATE KEY UPDATE fence = LAST_INSERT_ID(GREATEST(fence + 1, {NOW}))"
        )
        return text, (self._slot(claim), *values)

    def bump(self, claim: Claim) -> Statement | None:
        return None

    def bumped(self, result: Result) -> int:
        return result.insert_id

    @property
    def greeting(self) -> Callable[[Session, float], Awaitable[None]]:
        return self._greet

    async def _greet(self, session: Session, deadline: float) -> None:
        if session.clustered and not self._cluster_will_do:
            raise Misconfigured(
                "this server is a node of a Galera cluster: locks that live as long as a "
                "connection are known to one node only, and two clients on two nodes would hold "
                "the same one. Use strategy=row, or say pooler=session if every client is sent to "
                "the same node"
            )

    @property
    def schema(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self._fences} (slot SMALLINT PRIMARY KEY,"
            " fence BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB"
        ]


class AdvisorySpeech(MySQLSpeech):
    early = 1
    undo: Sequence[Statement] = ()

    def __init__(self, table: str, database: str, pooler: bool, fence: bool) -> None:
        super().__init__(table, database, pooler)
        self._fence = fence
        self.fenced: frozenset[Mode] = EXCLUSIVE if fence else frozenset()

    async def _greet(self, session: Session, deadline: float) -> None:
        await super()._greet(session, deadline)
        if session.database != self._database:  # the name is part of what is locked
            raise Misconfigured(
                f"the connection's database is {session.database!r}, the URL's is "
                f"{self._database!r}: write it as the server does"
            )

    def _key(self, name: str) -> str:
        return key_of(self._database, self._table, name)

    def _token(self, claim: Claim, key: str) -> list[Statement]:
        if not self._fence:
            return []
        return [self._bump(claim, " WHERE IS_USED_LOCK(%s) = CONNECTION_ID()", key)]

    def attempt(self, claim: Claim) -> list[Statement]:
        key = self._key(claim.name)
        # A hash, and nothing of the name: it may stand in the text.
        return [(f"SELECT GET_LOCK('{key}', 0)", ()), *self._token(claim, key)]

    def join(self, claim: Claim) -> list[Statement]:
        key = self._key(claim.name)
        return [
            CLOCK,
            ("SELECT GET_LOCK(%s, %s)", (key, SLICE)),
            *self._token(claim, key),
            CLOCK,
        ]

    def interrupted(self, results: Sequence[Result]) -> bool:
        return len(results) > 1 and results[1].rows[0][0] is None  # GET_LOCK's NULL

    def taken(self, results: Sequence[Result]) -> Taken | Verdict:
        joined = len(results) > 1 + self._fence
        if results[joined].rows[0][0] != 1:
            return Verdict.BUSY
        fence = results[joined + 1].insert_id if self._fence else None
        return Taken(fence, results[-1].rows[0][0] if joined else 0)

    def release(self, claim: Claim) -> list[Statement]:
        # No result to read: the lock is ours as long as the connection lives.
        return [(f"DO RELEASE_LOCK('{self._key(claim.name)}')", ())]

    def released(self, results: Sequence[Result]) -> bool:
        return True

    def missing(self, claim: Claim) -> list[Statement]:
        raise NotImplementedError

    def holders(self, name: str) -> Statement:
        text = (
            "SELECT ID, HOST, 1, 1, TIME FROM information_schema.PROCESSLIST"
            " WHERE ID = IS_USED_LOCK(%s)"
        )
        return text, (self._key(name),)

    @property
    def schema(self) -> list[str]:
        return super().schema if self._fence else []


class ForUpdateSpeech(MySQLSpeech):
    fenced = EXCLUSIVE
    early = 2
    undo: Sequence[Statement] = (("ROLLBACK", ()),)

    def __init__(self, table: str, database: str, pooler: bool) -> None:
        super().__init__(table, database, pooler)
        self._rows = quoted(f"{table}_rows")

    def _select(self, claim: Claim, how: str) -> Statement:
        text = f"SELECT 1 FROM {self._rows} WHERE name = %s FOR UPDATE{how}"
        return text, (claim.name.encode(),)

    def attempt(self, claim: Claim) -> list[Statement]:
        return [("BEGIN", ()), self._select(claim, " NOWAIT")]

    def join(self, claim: Claim) -> list[Statement]:
        return [("BEGIN", ()), CLOCK, self._select(claim, ""), CLOCK]

    def taken(self, results: Sequence[Result]) -> Taken | Verdict:
        joined = len(results) > 2
        if not results[1 + joined].rows:
            return Verdict.MISSING
        return Taken(None, results[-1].rows[0][0] if joined else 0)

    def bump(self, claim: Claim) -> Statement:
        return self._bump(claim, "")

    def release(self, claim: Claim) -> list[Statement]:
        return [("COMMIT", ())]

    def released(self, results: Sequence[Result]) -> bool:
        return True

    def missing(self, claim: Claim) -> list[Statement]:
        text = f"INSERT IGNORE INTO {self._rows} (name, made) VALUES (%s, {NOW})"
        return [(text, (claim.name.encode(),))]

    def old(self, after: bytes, idle: float, most: int) -> Statement:
        text = (
            f"SELECT name FROM {self._rows} WHERE name > %s AND made <= {NOW} - %s"
            f" ORDER BY name LIMIT {most}"
        )
        return text, (after, round(idle * 1e6))

    def forget(self, claim: Claim) -> list[Statement]:
        delete = f"DELETE FROM {self._rows} WHERE name = %s", (claim.name.encode(),)
        return [*self.attempt(claim), delete, ("COMMIT", ())]

    def holders(self, name: str) -> Statement:
        raise NotImplementedError

    @property
    def schema(self) -> list[str]:
        table = (
            f"CREATE TABLE IF NOT EXISTS {self._rows} (name VARBINARY(1024) PRIMARY KEY,"
            " made BIGINT NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
        )
        return [*super().schema, table]
