"""After everybody is gone: what is left of it.

Contract: within the longest lease and a moment a fresh client sees no holder and no waiter and can
take every name. In sqlite's file there is then no row of either, SQLite finds nothing wrong with
it, and no pipe of a dead process lies beside it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.backends.sqlite import place
from holdfast.backends.url import parse
from tests.stress.record import NAMES, now

__all__ = ["leftovers"]


def leftovers(url: str, prefix: str, alone: bool, patience: float) -> list[str]:
    """`prefix`: of the names that were used. `alone`: nobody else uses this store."""
    ours = "" if alone else prefix
    found: list[str] = []
    deadline = now() + patience
    with holdfast.connect(url) as locks:
        for name in NAMES:
            lock = locks.lock(prefix + name.text, ttl=2.0)
            lease = lock.acquire(timeout=max(0.1, deadline - now()))
            if lease is None:
                found.append(f"{name.text} cannot be had")
            else:
                lease.release()
        while (left := locks.inspect(ours)) and now() < deadline:
            time.sleep(0.05)
        found += [f"inspect() shows {info}" for info in left]
        path = place.resolve(parse(url)) if url.startswith("sqlite:") else None
        if path is not None and alone:
            found += _pipes(path, 1)
    if path is not None:
        found += _pipes(path, 0) if alone else ()
        found += _rows(path, ours)
    return found


def _pipes(path: Path, expected: int) -> Iterator[str]:
    """A fresh open removes those of the dead."""
    pipes = sorted(path.with_name(path.name + ".holdfast").glob("*.pipe"))
    if len(pipes) > expected:
        yield f"{len(pipes)} pipes, {expected} expected: {', '.join(p.name for p in pipes)}"


def _rows(path: Path, prefix: str) -> Iterator[str]:
    db = sqlite3.connect(path, timeout=5)
    try:
        for table in ("holders", "waiters"):
            for row in db.execute(f"SELECT * FROM {table}").fetchall():
                if any(isinstance(v, bytes) and v.startswith(prefix.encode()) for v in row):
                    yield f"a row in {table}: {row}"
        for (verdict,) in db.execute("PRAGMA integrity_check").fetchall():
            if verdict != "ok":
                yield f"PRAGMA integrity_check: {verdict}"
    except sqlite3.DatabaseError as error:
        yield f"PRAGMA integrity_check: {error}"
    finally:
        db.close()
