"""What the tests of the sqlite backend's faults have in common; fixtures are in `conftest.py`.

Every lease has a ttl far longer than the test (LONG), unless its expiry is what is tested: so
whoever gets a lock in time did not wait for an expiry, nor for a heartbeat (a third of the ttl).
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import holdfast
from tests.faults.peers import Peer
from tests.waiting import until

LONG = 300.0
SOON = 10.0  # far less than a heartbeat of LONG, and long enough for a busy machine


def in_line(locks: holdfast.Locks, count: int, name: str = "x") -> None:
    until(lambda: sum(len(i.waiters) for i in locks.inspect(name)) == count, f"{count} in line")


def sql(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as db:
        return db.execute(statement, values).fetchall()


def stand_in_line(locks: holdfast.Locks, expression: str, *peers: Peer) -> None:
    """Each peer waits for the lock, in this order."""
    for count, peer in enumerate(peers, 1):
        peer.wait_for(expression)
        in_line(locks, count)
