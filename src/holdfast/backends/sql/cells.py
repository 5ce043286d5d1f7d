"""Cells: a row each. A version is `greatest(version + 1, the database's microseconds)`.

Contract: `core/backend.py`. A deleted cell stays as an empty row until it is swept; a fence that
wrote stays for ever. Who waits for a cell is told by NOTIFY, or reads it again and again, ever more
rarely (`room.py`).
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

from holdfast.backends.common import conflict
from holdfast.backends.sql.desk import Desk, Moved
from holdfast.backends.sql.room import Room
from holdfast.backends.sql.schema import Tables
from holdfast.backends.sql.session import Gone, Session, Statement
from holdfast.backends.sql.words import Words
from holdfast.core.port import Port
from holdfast.types import Cell, CellConflict, Unknown

__all__ = ["Cells"]


PATIENCE = 5.0
"""For a look while waiting: it may need a new connection, which takes several round trips."""


class _Seen(NamedTuple):
    value: bytes | None
    version: int
    expires: int | None
    fence: int | None
    now: int

    @property
    def cell(self) -> Cell | None:
        if self.value is None or (self.expires is not None and self.expires <= self.now):
            return None
        return Cell(self.value, self.version)


class Cells:
    _port: Port
    _desk: Desk
    _room: Room
    _tables: Tables
    _words: Words

    @property
    def _look(self) -> str:
        now = self._desk.dialect.now
        return (
            f"SELECT value, version, expires, fence, {now} FROM {self._tables.cells}"
            " WHERE name = %s"
        )

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        seen = await self._see(name, deadline)
        return None if seen is None else seen.cell

    async def _see(self, name: str, deadline: float) -> _Seen | None:
        rows = await self._desk.read(self._look, (name.encode(),), deadline)
        return _Seen(*rows[0]) if rows else None

    async def cell_write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
        deadline: float,
    ) -> Cell | CellConflict | Unknown:
        key, dialect = name.encode(), self._desk.dialect

        async def work(session: Session) -> Cell | CellConflict | Unknown:
            reading = (f"{self._look} FOR UPDATE", (key,))
            opening = self._desk.opening(session)
            found = (await session.batch((*opening, reading), deadline))[-1]
            if not found.rows:
                # Empty, so that there is a row to lock: it counts as no cell.
                await session.run(
                    f"{dialect.insert_new} INTO {self._tables.cells}"
                    f" (name, value, version, expires, fence) VALUES (%s, NULL, 0, NULL, NULL)"
                    f"{dialect.if_new}",
                    (key,),
                    deadline,
                )
                await session.run("COMMIT", (), deadline)
                raise Moved
            seen = _Seen(*found.rows[0])
            refused = conflict(seen.cell, seen.fence, expect, fence)
            if refused is not None:
                await session.run("ROLLBACK", (), deadline)
                return refused
            version = max(seen.version + 1, seen.now)
            top = seen.fence if fence is None else fence  # no lower one got here
            expires = None if ttl is None else seen.now + round(ttl * 1e6)
            writes: list[Statement] = [
                (
                    f"UPDATE {self._tables.cells} SET value = %s, version = %s, expires = %s,"
                    " fence = %s WHERE name = %s",
                    (value, version, expires, top, key),
                )
            ]
            if dialect.notify:
                writes.append((dialect.notify, (self._words.cells_channel, _mark(key))))
            try:
                await session.batch((*writes, ("COMMIT", ())), deadline)
            except Gone as error:
                if not error.sent:
                    raise
                return Unknown(f"the commit was not answered: {error}")
            return Cell(value or b"", version)

        return await self._desk.transact(work, deadline)

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        async def read(limit: float) -> tuple[Cell | None, float]:
            seen = await self._see(name, limit)
            cell = None if seen is None else seen.cell
            if seen is None or cell is None or seen.expires is None:
                return cell, math.inf
            return cell, self._port.now() + (seen.expires - seen.now) / 1e6

        mark = _mark(name.encode())
        return await self._room.changed(mark, version, read, deadline, PATIENCE)


def _mark(name: bytes) -> str:
    """What a call about this cell says: not a number, which would be a waiter's place."""
    return f"c{hashlib.sha256(name).hexdigest()}"
