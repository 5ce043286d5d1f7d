"""PostgreSQL's words for `advisory` and `for-update`.

Contract: `sql/speech.py`. Advisory locks are numbers: a name is its hash in 64 bits, together with
the table's name, so that two applications may share a database. Two different names exclude one
another by accident if their hashes are the same: with n names in use at once, the odds are n²/2⁶⁵
(a million names: 1 in 37 million).

Tokens come from one sequence. Whoever has connected lifts it to the clock's microseconds: a server
that crashed, was restored or failed over may have forgotten the last numbers, and everybody
connects anew after that (law 7). Under an advisory lock, for two who lift at once must not lower
it; and with a margin, for others take numbers meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence

from holdfast.backends.postgres.dialect import Postgres
from holdfast.backends.sql.bound import SLICE
from holdfast.backends.sql.session import Result, Session, Statement
from holdfast.backends.sql.speech import Named, Taken, Verdict
from holdfast.errors import Misconfigured
from holdfast.types import Claim, Mode

__all__ = ["AdvisorySpeech", "ForUpdateSpeech", "TransactionSpeech"]

quoted = Postgres().quote

MICROSECONDS = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
CLOCK: Statement = (f"SELECT {MICROSECONDS}", ())
LEAST = 2000
"""Milliseconds: a session between two requests over a slow line is not idle yet."""
IDLE_SESSION = 140000  # the version that can end idle sessions

BOTH = frozenset({Mode.EXCLUSIVE, Mode.SHARED})


@functools.lru_cache(maxsize=4096)
def hashed(table: str, name: str) -> int:
    digest = hashlib.sha256(f"{table}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class PostgresSpeech:
    """What both strategies share."""

    ping: Statement = ("SELECT 1", ())
    cancelled = frozenset({"57014"})
    absent = frozenset({"42P01"})
    idle = "idle_session_timeout"
    oldest = IDLE_SESSION

    def __init__(self, table: str, pooler: bool) -> None:
        self._table = table
        self._sequence = f"{table}_fence"
        self._nextval = f"nextval('{quoted(self._sequence)}')"
        self._pooler = pooler

    def arrange(self, session: Session, ttl: float) -> list[Statement]:
        limits = max(math.ceil(ttl * 1000) + 1, LEAST), math.ceil(SLICE * 1000)
        if session.settings.get("limits") == limits:
            return []
        values = tuple(map(str, limits))
        text = f"SELECT set_config('{self.idle}', %s, false), set_config('lock_timeout', %s, false)"
        if session.version < self.oldest:
            text, values = "SELECT set_config('lock_timeout', %s, false)", values[1:]
        first = [] if "lifted" in session.settings else self._lift
        session.settings.update(limits=limits, lifted=True)
        session.lasts = min(1.0, ttl / 2)
        return [*first, (text, values)]

    @property
    def _lift(self) -> list[Statement]:
        sequence = quoted(self._sequence)
        return [
            ("SELECT pg_advisory_xact_lock(%s::bigint)", (hashed(self._table, "\0fence"),)),
            (
                f"SELECT setval('{sequence}', greatest(nextval('{sequence}'), {MICROSECONDS})"
                " + 1000)",
                (),
            ),
        ]

    def cancel(self, session: Named) -> Statement:
        return self._signalled("pg_cancel_backend", session)

    def interrupted(self, results: Sequence[Result]) -> bool:
        return False

    def kill(self, session: Named) -> Statement:
        return self._signalled("pg_terminate_backend", session)

    def _signalled(self, function: str, session: Named) -> Statement:
        # The name is unique: process numbers are used again.
        text = (
            f"SELECT {function}(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
        )
        return text, (session.number, session.mark)

    def finish(self, found: int) -> None:
        return None

    def bump(self, claim: Claim) -> None:
        return None

    def bumped(self, result: Result) -> int:
        raise NotImplementedError

    @property
    def greeting(self) -> Callable[[Session, float], Awaitable[None]]:
        return self._greet

    async def _greet(self, session: Session, deadline: float) -> None:
        if session.pooled and not self._pooler:
            raise Misconfigured(
                "a pooler stands between us and PostgreSQL: the server that answers is not the one "
                "we logged in to. Locks that live as long as a connection would be lost or shared "
                "there without a word. Connect to the server itself, use strategy=row, or say "
                "pooler=session if the pooler gives each client a server of its own"
            )

    @property
    def schema(self) -> list[str]:
        return [f"CREATE SEQUENCE IF NOT EXISTS {quoted(self._sequence)}"]


class AdvisorySpeech(PostgresSpeech):
    modes = fenced = BOTH
    early = 1
    undo: Sequence[Statement] = ()

    function = "pg_try_advisory_lock"

    def __init__(self, table: str, pooler: bool) -> None:
        super().__init__(table, pooler)
        self._texts = {
            mode: (
                f"SELECT CASE WHEN {self.function}{suffix}(%s::bigint) THEN {self._nextval} END",
                f"SELECT pg_advisory_unlock{suffix}(%s::bigint)",
            )
            for mode, suffix in ((Mode.EXCLUSIVE, ""), (Mode.SHARED, "_shared"))
        }

    def _lock(self, claim: Claim, function: str) -> Statement:
        shared = "_shared" if claim.mode is Mode.SHARED else ""
        return f"SELECT {function}{shared}(%s::bigint)", (hashed(self._table, claim.name),)

    def attempt(self, claim: Claim) -> list[Statement]:
        texts = self._texts[claim.mode]
        return [(texts[0], (hashed(self._table, claim.name),))]

    def join(self, claim: Claim) -> list[Statement]:
        return [
            CLOCK,
            self._lock(claim, "pg_advisory_lock"),
            (f"SELECT {self._nextval}, {MICROSECONDS}", ()),
        ]

    def taken(self, results: Sequence[Result]) -> Taken | Verdict:
        row = results[-1].rows[0]
        return Verdict.BUSY if row[0] is None else Taken(*row)

    def release(self, claim: Claim) -> list[Statement]:
        return [(self._texts[claim.mode][1], (hashed(self._table, claim.name),))]

    def released(self, results: Sequence[Result]) -> bool:
        return bool(results[-1].rows[0][0])

    def missing(self, claim: Claim) -> list[Statement]:
        raise NotImplementedError

    def holders(self, name: str) -> Statement:
        key = hashed(self._table, name) % (1 << 64)
        text = (
            "SELECT pid, application_name, granted, mode = 'ExclusiveLock',"
            " extract(epoch FROM clock_timestamp() - query_start)::float8"
            " FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory' AND objsubid = 1"
            " AND classid = %s::oid AND objid = %s::oid"
            " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname ="
            " current_database()) ORDER BY granted DESC, query_start"
        )
        return text, (key >> 32, key & 0xFFFFFFFF)


class TransactionSpeech(AdvisorySpeech):
    """The same locks, held by a transaction: whatever ends that, ends them."""

    early = 2
    undo: Sequence[Statement] = (("ROLLBACK", ()),)
    idle = "idle_in_transaction_session_timeout"
    oldest = 0
    function = "pg_try_advisory_xact_lock"

    def attempt(self, claim: Claim) -> list[Statement]:
        return [("BEGIN", ()), *super().attempt(claim)]

    def join(self, claim: Claim) -> list[Statement]:
        clock, _, last = super().join(claim)
        return [("BEGIN", ()), clock, self._lock(claim, "pg_advisory_xact_lock"), last]

    def release(self, claim: Claim) -> list[Statement]:
        return [("COMMIT", ())]

    def released(self, results: Sequence[Result]) -> bool:
        return True


class ForUpdateSpeech(PostgresSpeech):
    modes = fenced = frozenset({Mode.EXCLUSIVE})
    early = 2
    undo: Sequence[Statement] = (("ROLLBACK", ()),)
    idle = "idle_in_transaction_session_timeout"
    oldest = 0

    def __init__(self, table: str, pooler: bool) -> None:
        super().__init__(table, pooler)
        self._rows = quoted(f"{table}_rows")

    def _select(self, claim: Claim, how: str) -> Statement:
        text = f"SELECT 1 FROM {self._rows} WHERE name = %s::bytea FOR UPDATE{how}"
        return text, (claim.name.encode(),)

    def attempt(self, claim: Claim) -> list[Statement]:
        return [
            ("BEGIN", ()),
            self._select(claim, " NOWAIT"),
            (f"SELECT {self._nextval}", ()),
        ]

    def join(self, claim: Claim) -> list[Statement]:
        return [
            ("BEGIN", ()),
            CLOCK,
            self._select(claim, ""),
            (f"SELECT {self._nextval}, {MICROSECONDS}", ()),
        ]

    def taken(self, results: Sequence[Result]) -> Taken | Verdict:
        return Taken(*results[-1].rows[0]) if results[-2].rows else Verdict.MISSING

    def release(self, claim: Claim) -> list[Statement]:
        return [("COMMIT", ())]

    def released(self, results: Sequence[Result]) -> bool:
        return True

    def missing(self, claim: Claim) -> list[Statement]:
        text = (
            f"INSERT INTO {self._rows} (name, made) VALUES (%s::bytea, {MICROSECONDS})"
            " ON CONFLICT DO NOTHING"
        )
        return [(text, (claim.name.encode(),))]

    def old(self, after: bytes, idle: float, most: int) -> Statement:
        text = (
            f"SELECT name FROM {self._rows} WHERE name > %s::bytea"
            f" AND made <= {MICROSECONDS} - %s::bigint ORDER BY name LIMIT {most}"
        )
        return text, (after, round(idle * 1e6))

    def forget(self, claim: Claim) -> list[Statement]:
        delete = f"DELETE FROM {self._rows} WHERE name = %s::bytea", (claim.name.encode(),)
        return [("BEGIN", ()), self._select(claim, " NOWAIT"), delete, ("COMMIT", ())]

    def holders(self, name: str) -> Statement:
        raise NotImplementedError

    @property
    def schema(self) -> list[str]:
        table = (
            f"CREATE TABLE IF NOT EXISTS {self._rows} (name bytea PRIMARY KEY,"
            " made bigint NOT NULL)"
        )
        return [*super().schema, table]
