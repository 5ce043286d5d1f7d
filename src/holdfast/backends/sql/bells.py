"""`?wake=named-lock`: waking who waits on MySQL, which has no NOTIFY, by its named locks.

Contract: each claim of such a client, in line or holding, has a bell: a named lock that its client
holds on one connection for all of them. Who waits blocks in GET_LOCK on the bell of whoever is
ahead of it, on a connection of its own; when that one leaves, or its client dies, the bell comes
free, and one waiter looks: the next. A bell decides nothing: a lock is had by what the row says.

Cost, said on the page: a connection for each waiter, two for each client, and two statements more
for each hold. Hazards: a bell may be free although its claim is alive (its owner has not hung it
yet, or uses another option): whoever finds that looks again after pauses that grow, as without.
"""

from __future__ import annotations

import hashlib

from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.pool import Pool
from holdfast.backends.sql.session import Statement, Trouble
from holdfast.core.port import Port
from holdfast.errors import HoldfastError, Unavailable

__all__ = ["WINDOW", "Bells"]

WINDOW = 3.0
"""Seconds that a waiter has at least to answer when it is given the lock: one that nobody rang for
is told by a poll, and hears of that only when it has stopped listening for a bell."""

SLICE = 1
"""Seconds for which somebody waits for a bell before it looks what else there is. Whole ones: MySQL
knows no others."""

PATIENCE = 1.0


class Bells:
    def __init__(self, driver: Driver, port: Port, limit: int) -> None:
        connect = driver.connector(port.asynchronous)
        self._port = port
        # Not set up as the others are: this connection must not end when it is idle.
        self._tower = Pool(port, connect, 1, driver.where)
        self._ropes = Pool(port, connect, limit, driver.where)
        self._hung: set[str] = set()

    async def hang(self, owner: str) -> None:
        """From now on who is behind this claim can wait for it."""
        if owner not in self._hung:
            self._hung.add(owner)
            await self._say(("SELECT GET_LOCK(%s, 0)", (_name(owner.encode()),)))

    async def ring(self, owner: str) -> None:
        """It has left: the next one looks."""
        if owner in self._hung:
            self._hung.discard(owner)
            await self._say(("SELECT RELEASE_LOCK(%s)", (_name(owner.encode()),)))

    async def _say(self, statement: Statement) -> None:
        """Whatever happens to it: who waits looks by itself, too."""
        deadline = self._port.now() + PATIENCE
        try:
            session = await self._tower.take(deadline)
            try:
                await session.batch((statement,), deadline)
            finally:
                self._tower.give(session)
        except (Trouble, HoldfastError):
            pass

    async def wait(self, owner: bytes, until: float) -> bool | None:
        """Until the bell of this owner rings (True), or for a while; None: there are no bells."""
        name = _name(owner)
        try:
            session = await self._ropes.take(until)
        except Unavailable:
            if self._port.now() >= until:  # all are in use, or it takes long to make one more
                return False
            raise
        try:
            got, _ = await session.batch(
                (
                    ("SELECT GET_LOCK(%s, %s)", (name, SLICE)),
                    ("SELECT RELEASE_LOCK(%s)", (name,)),
                ),
                min(until, self._port.now() + SLICE + PATIENCE),
            )
            rang = got.rows[0][0]
            return None if rang is None else bool(rang)
        except Trouble:  # the connection broke, or this server refuses named locks
            return None
        finally:
            self._ropes.give(session)

    def close(self) -> None:
        self._tower.close()
        self._ropes.close()


def _name(owner: bytes) -> str:
    """An owner is a secret, and names of locks are not; at most 64 characters."""
    return f"holdfast:{hashlib.sha256(owner).hexdigest()[:48]}"
