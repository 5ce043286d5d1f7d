"""PostgreSQL's words. Contract: `sql/dialect.py`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.postgres.presence import PostgresSight
from holdfast.backends.sql.dialect import Types
from holdfast.backends.sql.session import Statement, Value

__all__ = ["Postgres"]

MAKING = 4841_1730_2205
"""The advisory lock under which tables are made: IF NOT EXISTS alone fails when two do it."""

IDLE = 2000
"""Milliseconds after which a session that does nothing inside a transaction is ended: it was
stopped, and others wait for the row that it has locked."""


class Postgres:
    types = Types(
        "BYTEA", "BYTEA", "BYTEA", "BYTEA", "BIGINT GENERATED ALWAYS AS IDENTITY NOT NULL"
    )
    index_inside = False
    table_options = ""
    # Not now(), which is the transaction's beginning.
    now = "(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::bigint"
    returning = True
    insert_new = "INSERT"
    if_new = " ON CONFLICT DO NOTHING"
    from_nothing = ""
    notify = "SELECT pg_notify(%s, %s)"
    setup: Sequence[str] = (
        "SELECT set_config('default_transaction_isolation', 'read committed', false),"
        f" set_config('idle_in_transaction_session_timeout', '{IDLE}', false)",
    )
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    sight = PostgresSight()
    setup_pooled: Sequence[str] = (
        "SELECT set_config('lock_timeout', '5000', true),"
        f" set_config('idle_in_transaction_session_timeout', '{IDLE}', true)",
    )
    no_table = frozenset({"42P01"})
    denied = frozenset({"42501", "3F000"})
    altered = frozenset({"42703", "42804", "42883"})

    def quote(self, identifier: str) -> str:
        return ".".join(f'"{part}"' for part in identifier.split("."))

    def making(self, texts: Sequence[str]) -> Sequence[str]:
        return ["BEGIN", f"SELECT pg_advisory_xact_lock({MAKING})", *texts, "COMMIT"]

    def listen(self, channel: str) -> str:
        return f'LISTEN "{channel}"'

    def among(self, column: str, number: int) -> str:
        return f"{column} = ANY (%s::bytea[])"

    def packed(self, values: Sequence[bytes]) -> Sequence[Value]:
        return ("{" + ",".join(f'"\\\\x{value.hex()}"' for value in values) + "}",)

    def renewal(self, locks: str, number: int) -> str:
        return (
            f"UPDATE {locks} AS l SET expires = GREATEST(l.expires + 1, {self.now} + l.ttl)"
            " FROM unnest(%s::bytea[], %s::bytea[]) AS mine (name, owner)"
            f" WHERE l.name = mine.name AND l.owner = mine.owner AND l.expires > {self.now}"
            " RETURNING l.owner"
        )

    def patience(self, seconds: int) -> Statement:
        return "SELECT set_config('lock_timeout', %s, false)", (str(seconds * 1000),)
