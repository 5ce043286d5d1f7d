"""Statements for the caller's own connection: identifiers, parameters, and what drivers differ in.

Contract: nothing is executed here. Values travel as parameters in the driver's style; names of
tables and columns cannot, so they are checked: plain words, or quoted by the caller.
Partners: `table.py`, `trigger.py`; `aio.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from holdfast.errors import Misconfigured

__all__ = ["Driver", "Statement", "apart", "driver_of", "first_column", "identifier"]

WORD = r"""(?:[A-Za-z_][A-Za-z0-9_$]*|"[^"'`%{}\x00]+"|`[^"'`%{}\x00]+`)"""
NAME = re.compile(rf"{WORD}(?:\.{WORD}){{0,2}}")

STYLES = {
    "qmark": "?",
    "format": "%s",
    "pyformat": "%s",
    "numeric": ":{}",
    "numeric_dollar": "${}",
    "named": ":p{}",
}

SILENT = {"aiomysql": "pyformat", "asyncmy": "pyformat", "aiosqlite": "qmark"}
"""Drivers whose module does not say its `paramstyle`."""

SQLITE = ("sqlite", "sqlite3", "aiosqlite", "pysqlite2", "pysqlcipher3")
MYSQL = ("mysql", "mariadb", "pymysql", "MySQLdb", "aiomysql", "asyncmy")


def identifier(name: str) -> str:
    """A table or column, `schema.table` included; `"Quoted"` where the database needs it."""
    if not NAME.fullmatch(name):
        raise Misconfigured(
            f"{name!r:.80} is no name of a table or column here: letters, digits and _, or quoted "
            "as the database wants it"
        )
    return name


def apart(name: str) -> tuple[str, str]:
    """The schema with its dot, if there is one, and the table. A dot in quotes is none."""
    local = re.findall(WORD, name)[-1]
    return name[: -len(local)], local


@dataclass(slots=True, frozen=True)
class Driver:
    style: str  # as DB-API's `paramstyle`
    locks_reads: bool  # SELECT ... FOR UPDATE: SQLite has none, and needs none
    counts_changes: bool  # MySQL may count rows changed, and not rows found


@dataclass(slots=True, frozen=True)
class Statement:
    """Text with {} where a parameter belongs, and the parameters in that order."""

    text: str
    values: Sequence[Any]
    rows: bool = False  # whether it answers with a row

    def for_driver(self, style: str) -> tuple[str, Any]:
        mark = STYLES[style]
        text = self.text.format(*(mark.format(n + 1) for n in range(len(self.values))))
        if style == "named":
            return text, {f"p{n + 1}": value for n, value in enumerate(self.values)}
        return text, tuple(self.values)


def driver_of(connection: Any, paramstyle: str | None) -> Driver:
    """What kind of connection this is: by SQLAlchemy's dialect, else by the module it is from."""
    dialect = getattr(connection, "dialect", None)
    if hasattr(connection, "exec_driver_sql") and dialect is not None:
        family, style = dialect.name, paramstyle or dialect.paramstyle
    else:
        # Whatever the caller has made of the driver's own class.
        roots = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
        styles = {root: _style(root) for root in roots}
        family = next((root for root in roots if styles[root]), roots[0])
        style = paramstyle or styles[family]
    if style not in STYLES:
        raise Misconfigured(
            f"how {family!r} writes parameters is not known: say paramstyle=, one of "
            f"{', '.join(STYLES)}"
        )
    return Driver(style, family not in SQLITE, family in MYSQL)


def _style(module: str) -> str | None:
    return getattr(sys.modules.get(module), "paramstyle", None) or SILENT.get(module)


def first_column(row: Any) -> Any:
    """Of a row as drivers have them: a tuple, or a mapping if the caller has it so."""
    if isinstance(row, Mapping):
        (value,) = cast(Mapping[str, Any], row).values()
        return value
    return row[0]
