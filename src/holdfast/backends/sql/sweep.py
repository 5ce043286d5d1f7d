"""The sweeper: forgets what is over and nobody asked about again. Any client is one; none leads.

Contract: bounded. Each round reads so many rows and no more, in the order of their names, and goes
on where the last one stopped. Two at once do the same work twice and no harm: what is deleted is
guarded by the conditions under which it was found.

Law 7: a name is forgotten only while its last token is in the past of the database's clock: so the
next one is larger though nobody remembers the last.
"""

from __future__ import annotations

import logging

from holdfast.backends.sql.desk import Desk
from holdfast.backends.sql.rules import Line
from holdfast.backends.sql.step import Steps
from holdfast.backends.sql.words import Words
from holdfast.core.port import Port, Task
from holdfast.errors import HoldfastError
from holdfast.types import Unknown

__all__ = ["Sweeper"]

log = logging.getLogger("holdfast")

EVERY = 60.0
"""Seconds of use between two rounds of a client."""

BATCH = 500
"""So many rows of each table in a round."""

IDLE = 600.0
"""Seconds for which the row of a free name is kept: it is likely to be used again."""

PATIENCE = 5.0


class Sweeper:
    def __init__(self, port: Port, desk: Desk, words: Words, steps: Steps) -> None:
        self._port = port
        self._desk = desk
        self._words = words
        self._steps = steps
        self._next = port.now() + EVERY * port.random()
        self._task: Task | None = None
        self._after = b""

    def perhaps(self, now: float) -> None:
        """Begin a round beside the caller, if it is time."""
        if now < self._next:
            return
        self._next = now + EVERY * (0.5 + self._port.random())
        if self._task is not None and self._task.alive:
            return
        try:
            self._task = self._port.task(self._round, self._farewell, "holdfast-sweep")
            self._task.start()
        except RuntimeError:  # the interpreter is exiting
            pass

    async def stop(self, deadline: float) -> None:
        if self._task is not None:
            await self._task.join(deadline)

    async def _farewell(self) -> None:
        """Whoever comes next sweeps."""

    async def _round(self) -> None:
        try:
            _, self._after = await self.sweep(self._after, IDLE, self._port.now() + PATIENCE)
        except HoldfastError as error:
            log.info("sweeping was not possible and is tried again later: %s", error)
        except Exception:
            log.exception("sweeping failed unexpectedly; it is tried again later")

    async def sweep(self, after: bytes, idle: float, deadline: float) -> tuple[int, bytes]:
        """One round, from this name on: how much was forgotten, and where to go on (empty: at the
        beginning)."""
        count = await self._claims(deadline)
        swept, after = await self._locks(after, idle, deadline)
        return count + swept + await self._cells(deadline), after

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
