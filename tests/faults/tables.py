"""Tables that gates guard, in each database."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import fencing
from tests.faults.late import sql_connection

__all__ = ["DATABASES", "a_table", "sql_place", "value_in"]

_numbers = itertools.count()

DATABASES = ("sqlite", "mysql", "postgresql")


def sql_place(request: pytest.FixtureRequest, database: str, path: Path) -> str:
    if database == "sqlite":
        return f"sqlite:{path / 'resource.db'}"
    fixture = {"mysql": "mariadb_server", "postgresql": "postgres_server"}[database]
    return f"{database}:{request.getfixturevalue(fixture).port}"


@contextlib.contextmanager
def a_table(where: str, database: str, guarded: bool) -> Iterator[tuple[str, Any]]:
    """A table with row 7, which nobody has written yet; and a connection to look."""
    name = f"account{next(_numbers)}_{uuid.uuid4().hex[:8]}"
    with contextlib.closing(sql_connection(where)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, value TEXT, fence BIGINT)")
        cursor.execute(f"INSERT INTO {name} (id, value) VALUES (7, 'old'), (8, 'other')")
        if guarded:
            for _ in range(2):  # harmless where it is there already
                for statement in fencing.trigger(name, database):
                    cursor.execute(statement)
        yield name, connection
        cursor.execute(f"DROP TABLE {name}")


def value_in(connection: Any, table: str) -> str:
    cursor = connection.cursor()
    cursor.execute(f"SELECT value FROM {table} WHERE id = 7")
    return str(cursor.fetchone()[0])
