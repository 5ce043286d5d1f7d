"""What a row must be like to be one of ours; and what to say of one that is not.

Contract: SQLite stores whatever it is given in any column, so who edits the file by hand may leave
anything there. Every row is judged where it is read, by SQLite itself: a condition for each column,
and `sound` for all of a table. A row that is not sound is never believed, and never passed over as
if it were not there: a holder might be behind it. Only its own name is refused; what it says about
itself (`info`) is shown as far as it can be read, and is in nobody's way.
Hazard: each condition begins with the type, so that NULL is not sound and not NULL.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

from holdfast.errors import Misconfigured
from holdfast.types import Mode

__all__ = ["PROCESS", "STATE", "cell", "holder", "refuse", "refuse_state", "waiter"]

FAR = 1 << 62
"""No number of ours reaches it; beyond twice that SQLite has none."""

LONG = 1e11
"""Seconds: no moment and no ttl of ours."""


def _count(column: str, least: int) -> str:
    return f"typeof({column}) = 'integer' AND {column} BETWEEN {least} AND {FAR}"


def _moment(column: str) -> str:
    return f"typeof({column}) = 'real' AND abs({column}) < {LONG}"


def _nullable(column: str, condition: str) -> str:
    return f"{column} IS NULL OR {condition}"


PROCESS = _count("process", 0)
CLAIM = {
    "owner": "typeof(owner) = 'text' AND owner <> '' AND owner NOT GLOB '*[^ -~]*'",
    "process": PROCESS,
    "mode": f"typeof(mode) = 'text' AND mode IN {tuple(mode.value for mode in Mode)}",
    "permits": _count("permits", 1),
    "since": _moment("since"),
    "expires": _moment("expires"),
    "info": "typeof(info) IN ('text', 'blob')",
}
TABLES = {
    "holders": CLAIM | {"fence": _nullable("fence", _count("fence", 0))},
    "waiters": CLAIM
    | {
        "place": _count("place", 1),
        "most": _count("most", 1),
        "ttl": f"{_moment('ttl')} AND ttl > 0",
        "look_at": "typeof(look_at) = 'real'",
        "depends": "typeof(depends) = 'text'",
    },
    "cells": {
        "value": _nullable("value", "typeof(value) = 'blob'"),
        "version": _count("version", 0),
        "expires": _nullable("expires", _moment("expires")),
        "fence": _nullable("fence", _count("fence", 0)),
    },
    "state": {
        "epoch": "typeof(epoch) = 'text'",
        "base": f"typeof(base) = 'integer' AND base BETWEEN {-FAR} AND {FAR}",
        "reserved": _count("reserved", 0),
    },
}


def _sound(table: str) -> str:
    return "(" + " AND ".join(f"({condition})" for condition in TABLES[table].values()) + ")"


holder, waiter, cell = _sound("holders"), _sound("waiters"), _sound("cells")
STATE = _sound("state")


def refuse(db: sqlite3.Connection, path: Path, table: str, name: bytes) -> NoReturn:
    """A row of this name was found not to be sound."""
    mend = f"DELETE FROM {table} WHERE name = X'{name.hex()}'"
    if table == "cells":
        what, mend = "What it says cannot be told", f"put it right, or delete it ({mend})"
    else:
        what = "Who holds this lock cannot be told, so nobody is given it"
        mend = f"put it right; or if nobody holds it, evict the name, or delete the row ({mend})"
    raise Misconfigured(
        f"{path}: the row of {name.decode(errors='replace')!r} in the table {table} is not as "
        f"holdfast writes it{_where(db, table, name)}: somebody has edited it. {what}; other names "
        f"are not concerned. Look at it with sqlite3, and {mend}"
    )


def refuse_state(db: sqlite3.Connection, path: Path) -> NoReturn:
    raise Misconfigured(
        f"{path}: the row of the table state is not as holdfast writes it{_where(db, 'state')}: "
        "somebody has edited it. Without it no lock can be given out: put it right, or delete the "
        "file while nobody uses it; locks then start afresh"
    )


def _where(db: sqlite3.Connection, table: str, name: bytes | None = None) -> str:
    """The columns."""
    conditions = TABLES[table]
    row = db.execute(
        f"SELECT {', '.join(conditions.values())} FROM {table}"
        f" WHERE NOT {_sound(table)}" + (" AND name = ?" if name is not None else ""),
        () if name is None else (name,),
    ).fetchone()
    wrong = [column for column, fine in zip(conditions, row or (), strict=False) if not fine]
    return f" ({', '.join(wrong)})" if wrong else ""
