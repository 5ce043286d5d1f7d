"""The memory backend's client half: dates what the store answers, and waits to be called.

Contract: `core/backend.py`. A request is a function call; or goes through a link, which in tests is
a network that delays, loses and reorders, so that what is tested against faults is this very code.
Partner: `store.py`, the server's half.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from holdfast.backends.memory.store import Call, Gone, Held, InLine, Store
from holdfast.backends.url import Option, Url
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Event, Port
from holdfast.errors import Unavailable
from holdfast.ports import clock
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
    Unknown,
)

__all__ = ["Link", "MemoryBackend"]

T = TypeVar("T")

LITTLE = 0.01
NOT_OURS = "the store has it no longer: it expired, or somebody evicted it"


class Link(Protocol):
    """The way to the store and back."""

    async def ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        """Have the store run `request`; Unknown when no answer came by the deadline."""
        ...

    def caller(self, call: Call) -> Call:
        """The store's way of calling a waiter, which may also fail."""
        ...


class _Ticket:
    """A waiter's place: where the store's call arrives."""

    __slots__ = ("event", "held")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.held: Held | None = None

    def call(self, held: Held | None) -> None:
        if held is not None:
            self.held = held
        self.event.set()


_stores: WeakValueDictionary[str, Store] = WeakValueDictionary()
_stores_mutex = threading.Lock()


def _forked() -> None:
    """A child has no share in the parent's stores; one of its threads may have been inside."""
    global _stores, _stores_mutex
    _stores = WeakValueDictionary[str, Store]()
    _stores_mutex = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class MemoryBackend:
    """`memory://` is one store for the whole process, `memory://name` another one."""

    options: tuple[Option, ...] = ()
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="ttl",
        failover="everything, when the process ends: it lives in its memory",
        cross_process=False,
    )

    def __init__(self, store: Store, link: Link | None = None) -> None:
        self.store = store
        self._link = link
        self._tickets: dict[str, _Ticket] = {}
        self._closed = False

    @classmethod
    def from_url(cls, url: Url) -> MemoryBackend:
        url.refuse("user", "password", "port", "path")
        name = url.host
        with _stores_mutex:  # a WeakValueDictionary's setdefault is not atomic
            store = _stores.get(name)
            if store is None:
                store = _stores[name] = Store(clock.now, time.time)
        return cls(store)

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port

    async def close(self) -> None:
        self._closed = True
        for ticket in list(self._tickets.values()):
            ticket.event.set()
        self._tickets.clear()

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        store = self.store
        enlist = self._enlist if queue else None
        sent = self._port.now()
        answer: Held | InLine | Gone | Unknown
        if self._link is None and not store.entered:
            answer = store.attempt(claim, enlist)
        else:
            answer = await self._ask(deadline, lambda: store.attempt(claim, enlist))
        if isinstance(answer, Held):
            self._tickets.pop(claim.owner, None)
            # Law 1: dated from before the request; the clocks are one, so there is no drift.
            until = valid_until(sent, claim.ttl, drift=0.0)
            return Grant(claim, until if until < answer.expires else answer.expires, answer.fence)
        if isinstance(answer, Unknown):
            return answer
        if isinstance(answer, Gone):
            return Buried()
        return Busy(answer.holder, answer.ahead, answer.look_at)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        """Sleeps until called, until the holder's expiry if we are first, or for a heartbeat."""
        port, store = self._port, self.store
        ticket = self._tickets.get(claim.owner)
        if ticket is None:  # withdrawn under our feet; the next attempt finds out what to do
            await port.sleep(LITTLE)
        look_at: float = busy.token
        while ticket is not None and self._tickets.get(claim.owner) is ticket:
            now = port.now()
            if ticket.held is None and now < deadline:
                await ticket.event.wait(min(look_at, now + claim.ttl / 3, deadline))
                ticket.event.clear()
            if ticket.held is not None:
                self._tickets.pop(claim.owner, None)
                return Grant(claim, ticket.held.expires, ticket.held.fence)
            now = port.now()
            if now >= deadline:
                break
            limit = min(deadline, now + claim.ttl / 3)
            answer = await self._ask(limit, lambda: store.look(claim))
            if isinstance(answer, Held):
                self._tickets.pop(claim.owner, None)
                return Grant(claim, answer.expires, answer.fence)
            if not isinstance(answer, InLine):
                break  # gone or unknown: the next attempt finds out
            look_at = answer.look_at
        return None

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        store = self.store
        ticket = self._tickets.pop(claim.owner, None)
        if ticket is not None:
            ticket.event.set()  # whoever still waits for it need not
        answer = await self._ask(deadline, lambda: store.withdraw(claim, tombstone))
        self._tickets.pop(claim.owner, None)  # an attempt may have been enlisted on the way
        return answer if isinstance(answer, Unknown) else Released()

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        store = self.store
        claims = [grant.claim for grant in grants]
        sent = self._port.now()
        answer = await self._ask(deadline, lambda: store.renew(claims))
        if isinstance(answer, Unknown):
            return [answer] * len(claims)
        return [
            Renewed(valid_until(sent, claim.ttl, drift=0.0)) if held else Lost(NOT_OURS)
            for claim, held in zip(claims, answer, strict=True)
        ]

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        store, claim = self.store, grant.claim
        answer: bool | Unknown
        if self._link is None and not store.entered:
            answer = store.release(claim, tombstone)
        else:
            answer = await self._ask(deadline, lambda: store.release(claim, tombstone))
        if isinstance(answer, Unknown):
            return answer
        return Released() if answer else AlreadyLost(NOT_OURS)

    def _enlist(self, claim: Claim) -> Call:
        """The store puts this claim in line: here is how to call it."""
        ticket = _Ticket(self._port.event())
        if not self._closed:
            self._tickets[claim.owner] = ticket
        return ticket.call if self._link is None else self._link.caller(ticket.call)

    # -- operators and cells ----------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        return await self._answer(deadline, lambda: self.store.inspect(prefix, exact))

    async def evict(self, name: str, deadline: float) -> int:
        return await self._answer(deadline, lambda: self.store.evict(name))

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        return await self._answer(deadline, lambda: self.store.cell_read(name))

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
        store = self.store
        return await self._ask(deadline, lambda: store.cell_write(name, value, expect, fence, ttl))

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        port, store = self._port, self.store
        event = port.event()
        expires = await self._answer(deadline, lambda: store.cell_watch(name, event.set))
        try:
            while True:
                cell = await self.cell_read(name, deadline)
                now = port.now()
                if (cell.version if cell else 0) != version or now >= deadline:
                    return cell
                await event.wait(min(expires, deadline) if now < expires else deadline)
                event.clear()
        finally:
            store.cell_unwatch(name, event.set)

    async def _ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        """Have the store run `request`: a function call, unless there is a link. (`attempt` and
        `release` make the call themselves, to save the two microseconds of this coroutine.)"""
        if self._link is not None:
            return await self._link.ask(deadline, request)
        if self.store.entered:
            return Unknown("asked from inside the store, by a finaliser")
        return request()

    async def _answer(self, deadline: float, request: Callable[[], T]) -> T:
        """For requests that have no place for Unknown: reading again is harmless."""
        answer = await self._ask(deadline, request)
        if isinstance(answer, Unknown):
            raise Unavailable(f"the memory store did not answer: {answer.reason}")
        return answer
