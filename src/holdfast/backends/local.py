"""The client's half of backends whose store answers in this very process: memory and sqlite.

Contract: `core/backend.py`. Dates what the store answers, and waits to be called. A request is a
function call, which may have to `enter` the store; or goes through a link: to a thread, or in tests
through a network that loses and reorders, so that what is tested against faults is this very code.
Partners: `memory/store.py` and `sqlite/store.py`, the server's halves (`LocalStore`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Event, Port
from holdfast.errors import Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Cell,
    CellConflict,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Released,
    Renewed,
    Unknown,
)

__all__ = [
    "INSIDE",
    "LATER",
    "Call",
    "Enlist",
    "Gone",
    "Held",
    "InLine",
    "Link",
    "LocalBackend",
    "LocalStore",
]

T = TypeVar("T")

LITTLE = 0.01
RELEASED = Released()
NOT_OURS = "the store has it no longer: it expired, or somebody evicted it"

INSIDE = "asked from inside the store, by a finaliser or a signal handler"

LATER = 0.05
"""How long after an expiry those behind the first in line look whether it was taken care of."""

# -- what a store says ----------------------------------------------------------------------------


class Held(NamedTuple):
    """The owner holds until `expires`."""

    expires: float
    fence: int | None


class InLine(NamedTuple):
    """The owner does not hold. Another look is worth it at `look_at`, if nobody calls before."""

    holder: str
    ahead: int | None
    look_at: float


class Gone(NamedTuple):
    """The store knows nothing of this owner, or refuses it for good."""

    reason: str


Call = Callable[[Held | None], None]
"""Tells a waiter that it holds or, with None, that it should look."""
Enlist = Callable[[Claim], Call]


class LocalStore(Protocol):
    """The server's half: every method is one atomic step."""

    @property
    def entered(self) -> bool:
        """Whether this very thread is inside: the garbage collector ran somebody's finaliser
        there, and what it asks for must wait until the line is in order."""
        ...

    def attempt(self, claim: Claim, enlist: Enlist | None) -> Held | InLine | Gone: ...
    def look(self, claim: Claim) -> Held | InLine | Gone: ...
    def withdraw(self, claim: Claim, tombstone: bool) -> None: ...
    def renew(self, claims: Sequence[Claim]) -> list[bool]: ...
    def release(self, claim: Claim, tombstone: bool) -> bool: ...
    def downgrade(self, claim: Claim) -> bool: ...
    def inspect(self, prefix: str, exact: bool) -> list[LockInfo]: ...
    def evict(self, name: str) -> int: ...
    def cell_read(self, name: str) -> Cell | None: ...
    def cell_write(
        self,
        name: str,
        value: bytes | None,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
    ) -> Cell | CellConflict: ...

    def cell_watch(self, name: str, call: Callable[[], None]) -> tuple[Cell | None, float]:
        """What is there now, and when it expires by itself, which calls nobody; every change from
        now on calls."""
        ...

    def cell_unwatch(self, name: str, call: Callable[[], None]) -> None:
        """Never waits: called whatever happened."""


class Link(Protocol):
    """The way to the store and back."""

    async def ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        """Have the store run `request`; Unknown when no answer came by the deadline."""
        ...

    def after(self, work: Callable[[], None]) -> None:
        """Do this after all that was asked before. Never waits, and never fails."""

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


S = TypeVar("S", bound=LocalStore)


class LocalBackend(Generic[S]):
    """Everything of a backend but its URL and its capabilities."""

    store: S

    def __init__(self, link: Link | None = None) -> None:
        self._link = link
        self._tickets: dict[str, _Ticket] = {}
        self._watching: dict[Event, None] = {}  # who waits for a cell
        self._closed = False

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port

    async def close(self) -> None:
        self._closed = True
        for ticket in list(self._tickets.values()):
            ticket.event.set()
        for event in list(self._watching):
            event.set()
        self._tickets.clear()

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        store = self.store
        enlist = self._enlist if queue else None
        sent = self._port.now()
        answer: Held | InLine | Gone | Unknown
        if self._link is None:
            answer = self._enter(deadline, lambda: store.attempt(claim, enlist))
        else:
            answer = await self._link.ask(deadline, lambda: store.attempt(claim, enlist))
        if isinstance(answer, Held):
            if self._tickets:
                self._tickets.pop(claim.owner, None)
            # Law 1: dated from before the request; the clocks are one, so there is no drift.
            until = sent + claim.ttl
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
            try:
                answer = await self._ask(limit, lambda: store.look(claim))
            except Unavailable:
                if port.now() >= deadline:
                    break  # it was busy when last seen, and there was no time to see more
                raise
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
        if self._link is None:
            answer = self._enter(deadline, lambda: store.release(claim, tombstone))
        else:
            answer = await self._link.ask(deadline, lambda: store.release(claim, tombstone))
        if isinstance(answer, Unknown):
            return answer
        return RELEASED if answer else AlreadyLost(NOT_OURS)

    async def downgrade(self, grant: Grant, deadline: float) -> Lost | Unknown | None:
        store, claim = self.store, grant.claim
        answer = await self._ask(deadline, lambda: store.downgrade(claim))
        if isinstance(answer, Unknown):
            return answer
        return None if answer else Lost(NOT_OURS)

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
        call = event.set
        try:
            self._watching[event] = None
            while True:
                cell, expires = await self._answer(deadline, lambda: store.cell_watch(name, call))
                now = port.now()
                changed = (cell.version if cell else 0) != version
                if changed or now >= deadline or self._closed:
                    return cell
                await event.wait(min(expires, deadline) if now < expires else deadline)
                event.clear()
        finally:
            self._watching.pop(event, None)
            self._after(lambda: store.cell_unwatch(name, call))

    def _after(self, work: Callable[[], None]) -> None:
        if self._link is not None:
            self._link.after(work)
        else:
            work()

    async def _ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        """Have the store run `request`. (`attempt` and `release` do it themselves, to save the
        microsecond of this coroutine.)"""
        if self._link is not None:
            return await self._link.ask(deadline, request)
        return self._enter(deadline, request)

    def _enter(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        """The way in for the caller's own thread, if there is no link; it may have to wait."""
        return Unknown(INSIDE) if self.store.entered else request()

    async def _answer(self, deadline: float, request: Callable[[], T]) -> T:
        """For requests that have no place for Unknown: reading again is harmless."""
        answer = await self._ask(deadline, request)
        if isinstance(answer, Unknown):
            raise Unavailable(f"the store did not answer: {answer.reason}")
        return answer
