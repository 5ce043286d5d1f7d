"""The tables of the strategies that keep locks in rows, and their version.

Contract: texts only; `desk.py` executes them, `holdfast schema` prints them. Everything is IF NOT
EXISTS and may be run by many clients at once, again and again. No foreign keys, no triggers, no
procedures. Times are microseconds since 1970 on the database's own clock, names are bytes.

| table | a row |
| --- | --- |
| `<table>` | a name: its last token, and who holds it alone. It outlives the hold, until swept |
| `<table>_claims` | who waits, who holds together with others, and who was withdrawn |
| `<table>_cells` | a small versioned value |
| `<table>_meta` | the version of all this |
"""

from __future__ import annotations

import re

from holdfast.backends.sql.dialect import Dialect
from holdfast.errors import Misconfigured

__all__ = ["VERSION", "Tables", "ddl"]

VERSION = 1
"""Changes with every change of the tables that an older client would not understand."""

LONGEST = 40
"""Characters of the table's name: what is put behind it must fit into the database's limit."""


class Tables:
    """The names of the tables, quoted; `?table=locks` or `?table=schema.locks`."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", table):
            raise Misconfigured(
                f"table={table!r}: letters, digits and _, with the schema before a dot if need be"
            )
        if len(table) > LONGEST:
            raise Misconfigured(f"table={table!r}: {LONGEST} characters at most")
        self.plain = table
        quote = dialect.quote
        self.locks = quote(table)
        self.claims = quote(f"{table}_claims")
        self.cells = quote(f"{table}_cells")
        self.meta = quote(f"{table}_meta")
        self.line_index = quote(f"{table.rpartition('.')[2]}_claims_line")


def ddl(dialect: Dialect, tables: Tables) -> list[str]:
    """What makes the tables, in order; and leaves alone what is there."""
    t = dialect.types
    index = f"INDEX {tables.line_index} (name, kind, place)" if dialect.index_inside else ""
    texts = [
        f"""CREATE TABLE IF NOT EXISTS {tables.locks} (
    name {t.name} NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    owner {t.owner} NOT NULL,
    expires BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ttl BIGINT NOT NULL,
    line SMALLINT NOT NULL,
    info {t.info} NOT NULL
){dialect.table_options}""",
        f"""CREATE TABLE IF NOT EXISTS {tables.claims} (
    place {t.serial} PRIMARY KEY,
    name {t.name} NOT NULL,
    owner {t.owner} NOT NULL UNIQUE,
    kind SMALLINT NOT NULL,
    mode SMALLINT NOT NULL,
    permits INTEGER NOT NULL,
    most INTEGER NOT NULL,
    ttl BIGINT NOT NULL,
    patience BIGINT NOT NULL,
    since BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    look_at BIGINT NOT NULL,
    fence BIGINT,
    client {t.owner} NOT NULL,
    info {t.info} NOT NULL{f", {index}" if index else ""}
){dialect.table_options}""",
        f"""CREATE TABLE IF NOT EXISTS {tables.cells} (
    name {t.name} NOT NULL PRIMARY KEY,
    value {t.value},
    version BIGINT NOT NULL,
    expires BIGINT,
    fence BIGINT
){dialect.table_options}""",
        f"""CREATE TABLE IF NOT EXISTS {tables.meta} (
    version INTEGER NOT NULL PRIMARY KEY
){dialect.table_options}""",
        f"{dialect.insert_new} INTO {tables.meta} (version)"
        f" SELECT {VERSION}{dialect.from_nothing}"
        f" WHERE NOT EXISTS (SELECT 1 FROM {tables.meta}){dialect.if_new}",
    ]
    if not index:
        texts.insert(
            2,
            f"CREATE INDEX IF NOT EXISTS {tables.line_index}"
            f" ON {tables.claims} (name, kind, place)",
        )
    return texts
