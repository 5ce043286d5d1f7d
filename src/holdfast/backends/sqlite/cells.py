"""Cells in SQL, and what all requests have in common.

Contract: `LocalStore`'s cells. Versions are tokens, so they grow over deletion and expiry. Beyond a
cell's value only its highest fence is kept. Who waits for a cell leaves the number of its process
beside it; the next write takes that away and sends it word, so a wait that ended leaves no more
than one needless message.
Partner: `store.py`, which adds the lines of claims.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
from collections.abc import Callable

from holdfast.backends.common import Tombstones, Written, conflict
from holdfast.backends.sqlite import schema, sound
from holdfast.backends.sqlite.site import Site
from holdfast.types import Cell, CellConflict

__all__ = ["Cells"]

SELECT = f"SELECT {sound.cell}, value, version, expires, fence FROM cells WHERE name = ?"


class Cells:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.tombstones = Tombstones()
        self.written = Written(str)
        self._mail = site.drafts
        self.dependencies: list[tuple[str, frozenset[int]]] = []
        self._watching: dict[str, list[Callable[[], None]]] = {}
        self._watching_mutex = threading.RLock()

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, during a request."""
        db = self.site.db
        assert db is not None
        return db

    @property
    def entered(self) -> bool:
        return self.site.entered

    def begin(self) -> float:
        """A transaction, in the epoch that this process knows; returns its time. Not that of the
        request: who was paused on the way here must not judge by a clock that has stood still."""
        self.db.execute("BEGIN IMMEDIATE")
        word, reserved = self.db.execute("SELECT epoch, reserved FROM state").fetchone() or ("", 0)
        self.check_epoch(word, reserved)
        return schema.now()

    def check_epoch(self, word: str, reserved: int) -> None:
        self.dependencies.clear()
        if word.__class__ is not str or reserved.__class__ is not int:
            sound.refuse_state(self.db, self.site.path)
        if not self.site.epoch.begun(word, reserved):
            self.db.execute("ROLLBACK")
            self.site.rejoin()

    def end(self) -> None:
        self.db.execute("COMMIT")
        self.site.post_drafts()
        while self.dependencies:
            self.site.post.depend(*self.dependencies.pop())

    # -- cells ------------------------------------------------------------------------------------

    def cell_read(self, name: str) -> Cell | None:
        return self._cell(name.encode())[0]

    def _cell(self, name: bytes) -> tuple[Cell | None, float, int | None]:
        """What is there, until when, and the highest fence that wrote."""
        row = self.db.execute(SELECT, (name,)).fetchone()
        if row is None:
            return None, math.inf, None
        fine, value, version, expires, fence = row
        if not fine:
            sound.refuse(self.db, self.site.path, "cells", name)
        if value is None or (expires is not None and expires <= schema.now()):
            return None, math.inf, fence
        return Cell(value, version), math.inf if expires is None else expires, fence

    def cell_write(
        self,
        name: str,
        value: bytes | None,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
    ) -> Cell | CellConflict:
        db, key = self.db, name.encode()
        now = self.begin()
        current, _, highest = self._cell(key)
        refused = conflict(current, highest, expect, fence)
        if refused is not None:
            db.execute("ROLLBACK")
            return refused
        version = self.site.epoch.reserve(db)
        top = highest if fence is None else fence  # no lower one got here
        if value is None and top is None:
            db.execute("DELETE FROM cells WHERE name = ?", (key,))
        else:
            expires = None if ttl is None else now + ttl
            db.execute(
                "REPLACE INTO cells VALUES (?, ?, ?, ?, ?)", (key, value, version, expires, top)
            )
        watchers = f"SELECT process FROM watchers WHERE name = ? AND {sound.PROCESS}"
        for (process,) in db.execute(watchers, (key,)):
            self._mail.append((process, _box(name), None))
        db.execute("DELETE FROM watchers WHERE name = ?", (key,))
        self.end()
        return Cell(value or b"", version)

    def cell_watch(self, name: str, call: Callable[[], None]) -> tuple[Cell | None, float]:
        with self._watching_mutex:
            watching = self._watching.setdefault(name, [])
            if call not in watching:
                watching.append(call)
            self.site.post.expect(_box(name), lambda _: self._changed(name))
        self.begin()
        self.db.execute(
            "INSERT OR IGNORE INTO watchers VALUES (?, ?)", (name.encode(), self.site.number)
        )
        cell, expires, _ = self._cell(name.encode())
        self.end()
        return cell, expires + schema.AHEAD

    def cell_unwatch(self, name: str, call: Callable[[], None]) -> None:
        with self._watching_mutex:
            watching = self._watching.get(name, [])
            if call in watching:
                watching.remove(call)
                if not watching:
                    del self._watching[name]
                    self.site.calls.pop(_box(name), None)

    def _changed(self, name: str) -> None:
        for call in list(self._watching.get(name, ())):
            call()

    def sweep_cells(self, now: float) -> None:
        self.db.execute("DELETE FROM cells WHERE expires <= ? AND fence IS NULL", (now,))
        self.db.execute("UPDATE cells SET value = NULL, expires = NULL WHERE expires <= ?", (now,))
        self.db.execute(f"DELETE FROM watchers WHERE NOT ({sound.PROCESS})")
        for (process,) in self.db.execute("SELECT DISTINCT process FROM watchers").fetchall():
            if not self.site.alive(process):
                self.db.execute("DELETE FROM watchers WHERE process = ?", (process,))


def _box(name: str) -> str:
    """Where word of a cell arrives: short, so that a message is written in one piece."""
    return f"cell {hashlib.sha256(name.encode()).hexdigest()}"
