"""What is left in the tables of locks in rows, and is over: dead claims, free names, empty cells.

Contract: bounded. Each round reads so many rows of each table and no more. Two at once do the same
work twice and no harm: what is deleted is guarded by the conditions under which it was found.

Law 7: a name is forgotten only while its last token is in the past of the database's clock: so the
next one is larger though nobody remembers the last. Partner: `sweep.py`, which calls for rounds.
"""

from __future__ import annotations

from holdfast.backends.sql.desk import Desk
from holdfast.backends.sql.rules import Line
from holdfast.backends.sql.step import Steps
from holdfast.backends.sql.words import Words
from holdfast.types import Unknown

__all__ = ["Leftovers"]

BATCH = 500
"""So many rows of each table in a round."""


class Leftovers:
    def __init__(self, desk: Desk, words: Words, steps: Steps) -> None:
        self._desk = desk
        self._words = words
        self._steps = steps

    async def round(self, after: bytes, idle: float, deadline: float) -> tuple[int, bytes | None]:
        """Locks are gone through by their names, the rest is not: if there was anything of that, it
        was perhaps one batch of several, and names that were passed may be free now."""
        claims = await self._claims(deadline)
        locks, after = await self._locks(after, idle, deadline)
        cells = await self._cells(deadline)
        more = after or claims or cells
        return claims + locks + cells, after if more else None

    async def _claims(self, deadline: float) -> int:
        """Move on the lines in which somebody expired."""
        tables, now = self._words.tables, self._desk.dialect.now
        found = await self._desk.read(
            f"SELECT name, COUNT(*) FROM {tables.claims} WHERE expires <= {now}"
            f" GROUP BY name LIMIT {BATCH}",
            (),
            deadline,
        )
        count = 0
        for name, number in found:
            answer = await self._steps.step(bytes(name), b"", _sweep_line, lambda _: True, deadline)
            count += number if answer is True else 0
        return count

    async def _locks(self, after: bytes, idle: float, deadline: float) -> tuple[int, bytes]:
        tables, dialect = self._words.tables, self._desk.dialect
        limit = round(idle * 1e6)
        over = (
            f"line = 0 AND expires <= {dialect.now} AND since <= {dialect.now} - {limit}"
            f" AND version < {dialect.now}"
        )
        found = await self._desk.read(
            f"SELECT name, CASE WHEN {over} THEN 1 ELSE 0 END FROM {tables.locks}"
            f" WHERE name > %s ORDER BY name LIMIT {BATCH}",
            (after,),
            deadline,
        )
        names = [bytes(name) for name, free in found if free]
        count = 0
        if names:
            result = await self._desk.ask(
                f"DELETE FROM {tables.locks} WHERE {dialect.among('name', len(names))} AND {over}",
                dialect.packed(names),
                deadline,
            )
            count = 0 if isinstance(result, Unknown) else result.changed
        return count, bytes(found[-1][0]) if len(found) == BATCH else b""

    async def _cells(self, deadline: float) -> int:
        tables, now = self._words.tables, self._desk.dialect.now
        over = f"fence IS NULL AND version < {now} AND (value IS NULL OR expires <= {now})"
        found = await self._desk.read(
            f"SELECT name FROM {tables.cells} WHERE {over} LIMIT {BATCH}", (), deadline
        )
        if not found:
            return 0
        names = [bytes(row[0]) for row in found]
        result = await self._desk.ask(
            f"DELETE FROM {tables.cells} WHERE"
            f" {self._desk.dialect.among('name', len(names))} AND {over}",
            self._desk.dialect.packed(names),
            deadline,
        )
        return 0 if isinstance(result, Unknown) else result.changed


def _sweep_line(line: Line) -> None:
    """Dead waiters also where they are not first."""
    line.sweep = True
