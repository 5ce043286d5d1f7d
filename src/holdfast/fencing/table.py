"""Rows that refuse stale tokens: UPDATE ... WHERE fence <= token, on the caller's own connection.

Contract: `update` writes one row and its token in one statement, or raises and has written nothing
(except that a key of several rows is noticed only afterwards: roll back).
It neither begins nor commits: in a transaction the row stays locked until the caller commits, so
everything else in that transaction is guarded too. The column is a 64-bit integer; NULL is no token
yet.

Hazards. MySQL may count the rows that an UPDATE changed, so that a retry with the same token and
values seems to have found nothing; and under REPEATABLE READ a plain SELECT afterwards reads what
was true when the transaction began. So the look that follows an UPDATE of no row locks what it
reads, and sees what the UPDATE saw.
Partner: `fencing/aio.py`, the same with `await`; `sql.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from holdfast.errors import Misconfigured, Unavailable, Unsupported
from holdfast.fencing.sql import Driver, Statement, driver_of, first_column, identifier
from holdfast.fencing.tokens import Token, stale, token_of

__all__ = ["Answer", "Rows", "Table"]

Answer = tuple[int, Any]
"""What a statement came to: how many rows it changed, and the first row that it answered."""

Key = Mapping[str, Any]

TRIES = 3
"""A row may appear between an UPDATE and a look; this often it does not."""


class Rows:
    """What both skins know of a table: its statements, and what follows from their answers."""

    def __init__(self, table: str, *, fence: str = "fence", paramstyle: str | None = None) -> None:
        self._table = identifier(table)
        self._fence = identifier(fence)
        self._paramstyle = paramstyle

    def _driver(self, connection: Any) -> Driver:
        return driver_of(connection, self._paramstyle)

    def _steps(
        self, lease: Token, key: Key, values: Key, driver: Driver
    ) -> Generator[Statement, Answer, None]:
        token = token_of(lease)
        if not key:
            raise Misconfigured("update(key): the columns that identify the row, with their values")
        update, look = self._update(token, key, values), self._look(key, driver)
        for _ in range(TRIES):
            changed, _row = yield update
            if changed < 0:
                raise Unsupported("this driver does not say how many rows an UPDATE has changed")
            if changed > 1:
                raise Misconfigured(
                    f"{self._named(key)}: {changed} rows, and a key identifies one. Roll back"
                )
            if changed:
                return
            _changed, row = yield look
            if row is None:
                raise LookupError(f"{self._named(key)}: there is no such row; insert it first")
            seen = int(first_column(row))
            if seen > token:
                raise stale(self._named(key), token, seen)
            if seen == token and driver.counts_changes:
                return  # written before, with these very values
        raise Unavailable(f"{self._named(key)} changes faster than it can be looked at; try again")

    def _update(self, token: int, key: Key, values: Key) -> Statement:
        columns = [identifier(column) for column in values]
        if self._fence in columns:
            raise Misconfigured(f"update(values): {self._fence} is set by the gate")
        assignments = ", ".join(f"{column} = {{}}" for column in (*columns, self._fence))
        return Statement(
            f"UPDATE {self._table} SET {assignments} "
            f"WHERE {self._where(key)} AND COALESCE({self._fence}, 0) <= {{}}",
            (*values.values(), token, *key.values(), token),
        )

    def _look(self, key: Key, driver: Driver) -> Statement:
        locking = " FOR UPDATE" if driver.locks_reads else ""
        return Statement(
            f"SELECT COALESCE({self._fence}, 0) FROM {self._table} "
            f"WHERE {self._where(key)}{locking}",
            tuple(key.values()),
            rows=True,
        )

    def _where(self, key: Key) -> str:
        return " AND ".join(f"{identifier(column)} = {{}}" for column in key)

    def _named(self, key: Key) -> str:
        # The columns alone: values may be nobody's business, and errors are logged.
        return f"the row of {self._table} with this {', '.join(key)}"


class Table(Rows):
    """A table whose `fence` column keeps the highest token of each row."""

    def update(self, connection: Any, lease: Token, key: Key, values: Key | None = None) -> None:
        """UPDATE the row with this key, if no newer token has written it; else `StaleFence`, or
        `LookupError` if there is no such row. Without values: only the token is noted, and the row
        locked until the transaction ends. `connection`: a DB-API connection, or SQLAlchemy's
        Connection or Session."""
        connection = _below(connection)
        driver = self._driver(connection)
        steps = self._steps(lease, key, values or {}, driver)
        try:
            statement = next(steps)
            while True:
                statement = steps.send(_run(connection, statement, driver.style))
        except StopIteration:
            pass


def _below(connection: Any) -> Any:
    """A Session's connection; anything else as it is."""
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):
        return connection.connection()
    return connection


def _run(connection: Any, statement: Statement, style: str) -> Answer:
    text, values = statement.for_driver(style)
    if hasattr(connection, "exec_driver_sql"):
        result = connection.exec_driver_sql(text, values)
        return (0, result.first()) if statement.rows else (result.rowcount, None)
    cursor = connection.cursor()
    try:
        cursor.execute(text, values)
        return (0, cursor.fetchone()) if statement.rows else (cursor.rowcount, None)
    finally:
        cursor.close()
