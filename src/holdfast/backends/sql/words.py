"""What the strategies that keep locks in rows say to a database: one text for each step.

Contract: texts with `%s` for each parameter, made once for each backend. "Now" is the database's
clock, in microseconds, when a statement begins: a statement that waited for a row judges by a
moment that is too early, so it believes in a holder for too long and never for too short a time.
Where a statement must tell a number, PostgreSQL returns it as a row, and MySQL by
LAST_INSERT_ID(expression) in its acknowledgement: one round trip on both. Partners: `row.py` and
`optimistic.py`.
"""

from __future__ import annotations

from holdfast.backends.sql.dialect import Dialect
from holdfast.backends.sql.schema import Tables
from holdfast.backends.sql.session import Result

__all__ = ["GRAVE", "GRAVES", "HOLDER", "WAITER", "Words"]

WAITER, HOLDER, GRAVE = 0, 1, 2
"""The kinds of claims."""

HEADS = 2
"""So many of a line are read at once: who is first, and whether anybody is behind."""

GRAVES = 4
"""And of tombstones, oldest first: who asks needs its own, and more are dropped than are made."""

BEHIND = 16
"""And so many each time when those were not enough."""

COLUMNS = (
    "kind, place, owner, mode, permits, most, ttl, patience, since, expires, look_at, fence,"
    " client, info"
)


class Words:
    def __init__(self, dialect: Dialect, tables: Tables) -> None:
        self._by_row = dialect.returning
        locks, claims, now = tables.locks, tables.claims, dialect.now
        self.tables = tables
        self.cells_channel = f"{tables.plain}_cells"

        def told(expression: str) -> str:
            return expression if dialect.returning else f"LAST_INSERT_ID({expression})"

        def telling(column: str) -> str:
            return f" RETURNING {column}" if dialect.returning else ""

        # -- one name, uncontended: nobody waits, and who holds it holds it alone ------------------
        raised = f"GREATEST(version + 1, {now})"

        def taking(name: str) -> str:
            return (
                f"UPDATE {locks} SET version = {told(raised)}, owner = %s,"
                f" expires = {now} + %s, since = {now}, ttl = %s, info = %s"
                f" WHERE {name} AND line = 0 AND expires <= {now}{telling('version')}"
            )

        self.take = taking("name = %s")
        self.swap = taking("name = %s AND version = %s")
        self.take_new = (
            f"{dialect.insert_new} INTO {locks}"
            " (name, version, owner, expires, since, ttl, line, info)"
            f" VALUES (%s, {told(now)}, %s, {now} + %s, {now}, %s, 0, %s)"
            f"{dialect.if_new}{telling('version')}"
        )
        self.peek = (
            f"SELECT version, owner, expires - {now}, line, info FROM {locks} WHERE name = %s"
        )
        self.give = (
            f"UPDATE {locks} SET owner = '', expires = 0"
            f" WHERE name = %s AND owner = %s AND line = 0 AND expires > {now}"
        )
        self.outdate = (
            f"UPDATE {locks} SET version = {raised}, owner = '', expires = 0"
            f" WHERE name = %s AND (owner = %s OR expires <= {now})"
        )
        keeping = "" if dialect.returning else ", version = LAST_INSERT_ID(version)"
        self.confirm = (
            f"UPDATE {locks} SET expires = GREATEST(expires, {now} + ttl){keeping}"
            f" WHERE name = %s AND owner = %s AND expires > {now}{telling('version')}"
        )
        keeping = "" if dialect.returning else ", fence = LAST_INSERT_ID(fence)"
        self.confirm_claim = (
            f"UPDATE {claims} SET expires = GREATEST(expires, {now} + ttl){keeping}"
            f" WHERE owner = %s AND kind = {HOLDER} AND expires > {now}{telling('fence')}"
        )

        # -- a step: the name's row is locked, the line is read, and what was decided is written ---
        self.lock = (
            f"SELECT version, owner, expires, since, ttl, line, info, {now}"
            f" FROM {locks} WHERE name = %s FOR UPDATE"
        )
        self.make = (
            f"{dialect.insert_new} INTO {locks}"
            " (name, version, owner, expires, since, ttl, line, info)"
            f" VALUES (%s, 0, '', 0, {now}, 0, 0, ''){dialect.if_new}"
        )
        self.line = (
            f"(SELECT {COLUMNS} FROM {claims} WHERE name = %s AND kind = {HOLDER})"
            f" UNION ALL (SELECT {COLUMNS} FROM {claims} WHERE name = %s AND kind = {WAITER}"
            f" ORDER BY place LIMIT {HEADS})"
            f" UNION ALL (SELECT {COLUMNS} FROM {claims} WHERE name = %s AND kind = {GRAVE}"
            f" ORDER BY place LIMIT {GRAVES})"
            f" UNION ALL (SELECT {COLUMNS} FROM {claims} WHERE owner = %s AND kind <> {HOLDER})"
        )
        self.behind = (
            f"SELECT {COLUMNS} FROM {claims} WHERE name = %s AND kind = {WAITER} AND place > %s"
            f" ORDER BY place LIMIT {BEHIND}"
        )
        self.before = (
            f"SELECT owner FROM {claims} WHERE name = %s AND kind = {WAITER} AND place < %s"
            " ORDER BY place DESC LIMIT 1"
        )
        self.write = (
            f"UPDATE {locks} SET version = %s, owner = %s, expires = %s, since = %s, ttl = %s,"
            " line = %s, info = %s WHERE name = %s"
        )
        self.enter = (
            f"INSERT INTO {claims} (name, owner, kind, mode, permits, most, ttl, patience, since,"
            " expires, look_at, fence, client, info)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            f"{telling('place')}"
        )
        self.hold = (
            f"UPDATE {claims} SET kind = {HOLDER}, since = %s, expires = %s, fence = %s"
            " WHERE place = %s"
        )
        self.stay = f"UPDATE {claims} SET expires = %s, look_at = %s WHERE place = %s"
        self.look_at = f"UPDATE {claims} SET look_at = %s WHERE place = %s"
        self.leave = f"DELETE FROM {claims} WHERE place = %s"
        # Whoever came back to life between our look and this is not dropped, and we look again.
        self.drop = f"DELETE FROM {claims} WHERE place = %s AND expires <= %s"
        self.drop_all = f"DELETE FROM {claims} WHERE name = %s AND expires <= %s"
        # For the crash detector: whoever was renewed since it was seen is not.
        self.reap = f"DELETE FROM {claims} WHERE place = %s AND expires = %s"
        self.lengthen = f"UPDATE {claims} SET expires = GREATEST(expires, %s) WHERE place = %s"
        self._dialect = dialect

    # -- many at once -----------------------------------------------------------------------------

    def beat(self, number: int) -> str:
        """Keeps so many places in line alive."""
        return (
            f"UPDATE {self.tables.claims} SET expires = {self._dialect.now} + patience"
            f" WHERE {self._dialect.among('owner', number)} AND kind = {WAITER}"
        )

    def still(self, number: int) -> str:
        """Which of so many owners stand in line."""
        return (
            f"SELECT owner FROM {self.tables.claims}"
            f" WHERE {self._dialect.among('owner', number)} AND kind = {WAITER}"
        )

    def renew(self, number: int) -> str:
        return self._dialect.renewal(self.tables.locks, number)

    def renew_claims(self, number: int) -> str:
        dialect = self._dialect
        return (
            f"UPDATE {self.tables.claims} SET expires = GREATEST(expires + 1, {dialect.now} + ttl)"
            f" WHERE {dialect.among('owner', number)} AND kind = {HOLDER}"
            f" AND expires > {dialect.now}{' RETURNING owner' if dialect.returning else ''}"
        )

    def kept(self, number: int) -> str:
        """Which of so many owners hold alone. Parameters as for `renew`."""
        dialect = self._dialect
        return (
            f"SELECT owner FROM {self.tables.locks} WHERE {dialect.among('name', number)}"
            f" AND {dialect.among('owner', number)} AND expires > {dialect.now}"
        )

    def kept_claims(self, number: int) -> str:
        dialect = self._dialect
        return (
            f"SELECT owner FROM {self.tables.claims} WHERE {dialect.among('owner', number)}"
            f" AND kind = {HOLDER} AND expires > {dialect.now}"
        )

    def of_the_absent(self, presence: str, present: int) -> str:
        """What is held by clients that name a presence, but none of so many."""
        dialect = self._dialect
        held = f"expires > {dialect.now} AND {presence} IS NOT NULL"
        if present:
            held += f" AND NOT ({dialect.among(presence, present)})"
        columns = "SELECT name, owner, expires, info FROM"
        return (
            f"{columns} {self.tables.locks} WHERE owner <> '' AND {held} UNION ALL"
            f" {columns} {self.tables.claims} WHERE kind = {HOLDER} AND {held}"
        )

    def number(self, result: Result) -> int | None:
        """What a statement told: None if it did nothing."""
        if self._by_row:
            return result.rows[0][0] if result.rows else None
        return result.insert_id if result.changed else None
