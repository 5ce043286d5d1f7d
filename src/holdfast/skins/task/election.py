"""`locks.election(name)` for tasks. Partner: `toolbox/election.py`, which decides."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.acquire import Engine
from holdfast.core.guard import Guard
from holdfast.core.handle import Taking
from holdfast.core.options import Want, checked_timeout
from holdfast.errors import LeaseLost, Misconfigured
from holdfast.skins.task.lock import Acquirable, Lease
from holdfast.toolbox import election
from holdfast.toolbox.election import Leader
from holdfast.toolbox.values import encode

if TYPE_CHECKING:
    from holdfast.aio import Locks

__all__ = ["Election", "Leader", "Leadership", "Observation"]

R = TypeVar("R")


class Leadership(Lease):
    """What a leader holds: a lease, and a word that everybody hears."""

    __slots__ = ()

    async def proclaim(self, value: Any) -> None:
        """Say something else. `LeaseLost` if it is not the leader any more."""
        data = encode(value)
        self.check()
        await election.proclaim(self._engine, self._hold, data)

    async def release(self) -> bool:
        """Resign. True: it led until now. False: it had been lost. Again: does nothing."""
        try:
            if not self._done:
                await election.withdraw(self._engine, self._hold)
        except BaseException:
            self._abandon()
            raise
        return await super().release()


class Seat(Acquirable[Leadership]):
    """One campaign, and what came of it."""

    __slots__ = ("_data", "_election")
    _lease = Leadership

    def __init__(self, election: Election, data: bytes) -> None:
        super().__init__(election._client, election._want, cancel_on_lost=True)
        self._data = data
        self._election = weakref.ref(election)  # which keeps us, if it is kept itself

    @property
    def _over(self) -> bool:
        return all(lease._hold.end for lease in list(self._leases))

    def _acquisition(self, engine: Engine) -> Taking:
        return election.Candidacy(engine, self._want, self._data)

    def _keep(self, lease: Leadership, entering: bool, coming: weakref.ref[Guard] | None) -> None:
        """The election keeps the lease alive, and resign() finds it."""
        super()._keep(lease, entering, coming)
        election = self._election()
        if election is not None:
            election._seats[self] = None

    def _forget(self, acquisition: Taking) -> None:
        super()._forget(acquisition)
        election = self._election()
        if election is not None:
            election._seats.pop(self, None)


class Observation:
    """An asynchronous iterator over who leads: first who does now, then each change."""

    def __init__(self, client: Locks, name: str, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._watch = election.Watch(name)

    def __aiter__(self) -> Observation:
        return self

    async def __anext__(self) -> Leader | None:
        told, leader = await self._watch.next(self._client._engine(), self._timeout)
        if not told:
            raise StopAsyncIteration
        return leader


class Election:
    """One leads, the others stand in line, and everybody may know who leads."""

    def __init__(self, client: Locks, want: Want, name: str) -> None:
        self._client = client
        self._want = want
        self._seats: dict[Seat, None] = {}
        self._name = name

    def _seat(self, value: Any) -> Seat:
        for old in [seat for seat in list(self._seats) if seat._over]:
            self._seats.pop(old, None)
        proclaimed = dict(self._client._engine().identity) if value is None else value
        return Seat(self, encode(proclaimed))

    async def campaign(self, value: Any = None, timeout: float | None = None) -> Leadership | None:
        """Stand in line and lead: what the leader holds, or None when time ran out. `value`: what
        everybody shall know (default: host, pid and label); bytes, or what JSON can say."""
        return await self._seat(value).acquire(timeout=timeout)

    async def resign(self) -> bool:
        """Give up what this object holds, whoever took it. True: it led until now."""
        led = False
        for seat in list(self._seats):
            for lease in list(seat._leases):
                held = lease.held
                led = (await lease.release() and held) or led
        return led

    async def leader(self) -> Leader | None:
        """Who leads, as the store says; None when nobody does. Old news when you read it."""
        return await election.leader(self._client._engine(), self._want.name)

    def observe(self, timeout: float | None = None) -> Observation:
        """Iterate over who leads (None: nobody): first now, then at each change; changes that
        follow one another fast are one. Ends when there was none for `timeout` seconds."""
        patience = -1.0 if timeout is None else checked_timeout(timeout)
        return Observation(self._client, self._want.name, patience)

    async def run_when_leader(
        self, function: Callable[[Leadership], Awaitable[R]], value: Any = None
    ) -> R:
        """Await `function(leadership)` when we lead, and again whenever we lead again after it was
        lost, when it is cancelled; what it returns while we lead is returned, after we have
        resigned. `Unavailable` if the store is away when we stand in line."""
        if not callable(function):
            raise Misconfigured("run_when_leader wants a function that takes the leadership")
        while True:
            finished: list[R] = []
            try:
                async with self._seat(value) as leadership:
                    coming = function(leadership)
                    if not inspect.isawaitable(coming):  # whatever its type says
                        raise Misconfigured(
                            "run_when_leader wants a coroutine function here: a plain one belongs "
                            "to a client from holdfast.connect(), and would stop this event loop"
                        )
                    result = await coming
                    if not leadership.lost.is_set():
                        finished.append(result)  # whatever becomes of the lead after it
            except LeaseLost as loss:
                if loss.name != self._want.name:
                    raise
            if finished:
                return finished[0]

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def __repr__(self) -> str:
        return f"<Election {self.name!r} ttl={self._want.ttl:g}>"
