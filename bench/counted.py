"""A backend that counts: what is asked of the store, how large renewals are, and who is in line.

Contract: `counted(client)` makes a client of any backend count from then on; it must not have been
used yet. The wrapped backend does the work, and what it answers is passed on as it is. Counting
costs about a microsecond for an acquire and release, so it is left out where those are timed.

Databases keep no books that every client could read, so what is sent to them is counted here: each
exchange is a request, and its statements are counted as well, heartbeats and waiting included.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import holdfast
from holdfast import aio
from holdfast.core.backend import Backend
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Claim,
    Grant,
    Lost,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["Counted", "counted"]


class Counted:
    """Waits are not counted as requests: what a wait asks of the store, the store must tell; or
    `exchanges` are counted instead, if there is such a thing."""

    def __init__(self, inner: Backend, exchanges: Exchanges | None = None) -> None:
        self._inner = inner
        self.exchanges = exchanges
        self._mutex = threading.Lock()
        self._alarm: tuple[int, Callable[[], Any]] | None = None
        self._requests = itertools.count()  # `next` is atomic, `+= 1` is not
        self._looks = itertools.count(1)
        self.renewals: list[int] = []  # the size of each batch
        self.renewed = 0
        self.queued: dict[str, int] = {}  # owner -> when it stood in line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def requests(self) -> int:
        if self.exchanges is not None:
            return self.exchanges.number
        return next(self._requests) + 1 - next(self._looks)

    def after(self, renewed: int, call: Callable[[], Any]) -> None:
        """Call once that many leases have been renewed, counted from the beginning."""
        with self._mutex:
            self._alarm = renewed, call

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        next(self._requests)
        return await self._inner.attempt(claim, queue, deadline)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        self.queued.setdefault(claim.owner, time.monotonic_ns())
        return await self._inner.wait(claim, busy, deadline)

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        next(self._requests)
        answers = await self._inner.renew(grants, deadline)
        with self._mutex:
            self.renewals.append(len(grants))
            self.renewed += len(grants)
            if self._alarm is not None and self.renewed >= self._alarm[0]:
                self._alarm[1]()
                self._alarm = None
        return answers

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        next(self._requests)
        return await self._inner.release(grant, tombstone, deadline)


class Exchanges:
    """With databases, of this whole process."""

    def __init__(self) -> None:
        from holdfast.backends.sql import session

        self.number = self.statements = 0
        self._mutex = threading.Lock()
        self._made: weakref.WeakSet[session.Session] = weakref.WeakSet()
        begin, opened = session.Session.begin, session.Session._opened

        async def counting(
            its: session.Session,
            statements: Sequence[session.Statement],
            deadline: float,
            early: bool = False,
        ) -> None:
            with self._mutex:
                self.number += 1
                self.statements += len(statements)
            await begin(its, statements, deadline, early)

        def noting(its: session.Session) -> None:
            self._made.add(its)
            opened(its)

        session.Session._opened = noting  # type: ignore[method-assign, assignment]  # as below
        session.Session.begin = counting  # type: ignore[method-assign, assignment]  # counted, then as it was

    @property
    def connections(self) -> int:
        """That are open now."""
        return sum(not its._over for its in list(self._made))


def counted(client: holdfast.Locks | aio.Locks) -> Counted:
    """From here on, and in the client's forked children, everything goes through a `Counted`."""
    make = client._make_backend
    is_sql = type(client._current.backend).__module__.startswith("holdfast.backends.sql.")
    exchanges = Exchanges() if is_sql else None
    client._make_backend = lambda: Counted(make(), exchanges)
    client._current = client._make_engine()
    backend = client._current.backend
    assert isinstance(backend, Counted)
    return backend
