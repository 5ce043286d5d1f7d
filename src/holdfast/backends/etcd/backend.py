"""`etcd://`: claims as keys in the order of their creation, on leases that are kept alive.

Contract: `core/backend.py`. Acquire is one transaction, release one deletion. The key's name is
made of the owner: so asking twice is asking once, and deleting it can hit nobody else. If a request
that puts the key was never answered when its claim is given up, a tombstone is put in the
transaction that deletes the key, and late requests meet it (law 3; `sessions.py` says how long).

Partners: `taking.py`, `keeping.py`, `cells.py`, `overview.py`, which do it; `channel.py`, how
anything gets there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from holdfast.backends.etcd import keeping, overview
from holdfast.backends.etcd.answers import Garbled
from holdfast.backends.etcd.book import NOT_OURS, TOO_LATE, Book
from holdfast.backends.etcd.cells import Cells
from holdfast.backends.etcd.channel import Channel, Site
from holdfast.backends.etcd.entry import Entry
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.hub import Hub
from holdfast.backends.etcd.keys import Keys
from holdfast.backends.etcd.loops import LoopTransport
from holdfast.backends.etcd.taking import Taking
from holdfast.backends.etcd.threads import ThreadTransport
from holdfast.backends.etcd.transact import transact
from holdfast.backends.etcd.url import OPTIONS, site_of
from holdfast.backends.url import Url
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Cell,
    CellConflict,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Mode,
    Released,
    Renewed,
    TxnGuard,
    Unknown,
)

__all__ = ["EtcdBackend"]

P = ParamSpec("P")
T = TypeVar("T")

REVOKE = 1.0
"""How long `close` waits for its leases to be revoked."""


class EtcdBackend:
    options = OPTIONS
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset(Mode),
        crash_release="session",
        failover="nothing that was acknowledged, while a majority of the members keeps its disk",
    )

    def __init__(self, site: Site, keys: Keys) -> None:
        self._site = site
        self._keys = keys

    @classmethod
    def from_url(cls, url: Url) -> EtcdBackend:
        return cls(*site_of(url))

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port
        self._incarnation = port.incarnation()
        tls = self._site.tls
        transport = LoopTransport(tls) if port.asynchronous else ThreadTransport(port, tls)
        self._channel = Channel(self._site, transport, port)
        self._book = Book(port, self._channel, self._keys, signals)
        self._sessions = self._book.sessions
        self._hub = Hub(self._channel, port)
        self._taking = Taking(self._book, self._hub)
        self._cells = Cells(self._channel, self._hub, self._keys, port)

    async def close(self) -> None:
        if self._port.incarnation() != self._incarnation:
            return  # law 8: all of this is the parent's
        for entry in list(self._book.entries.values()):
            entry.gone = True
            entry.event.set()
        try:
            await self._hub.close(self._port.now() + REVOKE)
            await self._sessions.close(self._port.now() + REVOKE)
        finally:
            await self._channel.close()

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        return await self._told(self._taking.attempt, claim, queue, deadline)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        with self._channel.understood():
            return await self._taking.wait(claim, deadline)

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        answers = await self._told(keeping.renew, self._book, grants, deadline)
        return [answers] * len(grants) if isinstance(answers, Unknown) else answers

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        if tombstone:
            self._book.bury(claim)
        entry = self._book.entries.get(claim.owner)
        if entry is None:
            return Released()
        entry.gone = True
        entry.event.set()
        result = await self._delete(entry, tombstone, deadline)
        if isinstance(result, Unknown):
            return result
        self._book.forget(entry)
        return Released()

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        claim = grant.claim
        entry = self._book.entries.get(claim.owner)
        if entry is None:
            return AlreadyLost(NOT_OURS)
        held, now = entry.held, self._port.now()
        if tombstone:
            self._book.bury(claim)
        result = await self._delete(entry, tombstone, deadline)
        if isinstance(result, Unknown):
            return result
        self._book.forget(entry)
        if not result or not held:
            return AlreadyLost(NOT_OURS)
        return Released() if now < entry.until else AlreadyLost(TOO_LATE)

    async def _delete(self, entry: Entry, tombstone: bool, deadline: float) -> int | Unknown:
        result = await self._told(self._book.delete, entry, tombstone, deadline)
        return Unknown(result.text) if isinstance(result, Failure) else result

    # -- operators and cells ----------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        with self._channel.understood():
            return await overview.inspect(
                self._channel, self._port, self._keys, prefix, exact, deadline
            )

    async def evict(self, name: str, deadline: float) -> int:
        with self._channel.understood():
            return await overview.evict(self._channel, self._port, self._keys, name, deadline)

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        with self._channel.understood():
            return await self._cells.read(name, deadline)

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
        return await self._told(self._cells.write, name, value, expect, fence, ttl, deadline)

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        with self._channel.understood():
            return await self._cells.wait(name, version, deadline)

    async def transact(
        self,
        guard: TxnGuard,
        put: Mapping[bytes, bytes],
        delete: Sequence[bytes],
        deadline: float,
    ) -> int | Unknown | None:
        return await self._told(transact, self._channel, guard, put, delete, deadline)

    async def _told(
        self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T | Unknown:
        """What cannot be understood says nothing of what was done (law 2)."""
        try:
            with self._channel.understood():
                return await work(*args, **kwargs)
        except Garbled as error:
            return Unknown(str(error))
