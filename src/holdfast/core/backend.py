"""THE protocol: the one page a backend author reads.

A backend is *a queue and a compatibility rule*. It lives in one folder, is named in one line of
`backends/__init__.py`, and is right when `holdfast.testing.conformance` passes on it.

Laws every backend keeps (docs/concepts/design.md has the reasons):

1. Validity is dated from before the request was sent, on the port's clock, minus drift.
2. No answer is `Unknown`, returned and not raised. `Unavailable` is raised only when the request
   surely was not applied (nothing was sent, or the store refused it before looking).
3. No ghosts. Attempts are idempotent per owner. Heartbeats refresh and never create. `withdraw`
   and `release` leave a tombstone of the owner when told to: late attempts honour it for one ttl.
4. Every call returns by its `deadline`, and may be cancelled or interrupted at any point; the
   core then calls `withdraw` with the same claim, from another thread or task.
5. Comparing the owner and acting on it is one atomic step in the store (R3).
6. A renewal never shortens an expiry, and never brings back what is gone.
7. The fencing tokens of a name strictly increase over exclusive grants.

Calls may come from several threads at once on a thread port. `open` does no I/O: connections are
made when first needed, so that `connect()` cannot hang and a forked child makes its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

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
    Released,
    Renewed,
    TxnGuard,
    Unknown,
)

__all__ = [
    "Backend",
    "Downgrading",
    "InTurn",
    "Nascent",
    "Signals",
    "Swept",
    "Tabular",
    "Together",
    "Transactional",
    "Turn",
]


class Signals(Protocol):
    """How a backend reports what it learns on its own (a session's end, a push from the store).

    Both may be called from any thread, for owners that do not exist any more, and never block.
    """

    def lost(self, owner: str, reason: str) -> None:
        """The store has, or will have, given this claim to others."""

    def certain_until(self, owner: str, moment: float) -> None:
        """From `moment` on the lease is uncertain; `math.inf` makes it certain again."""


class Backend(Protocol):
    """What the core asks of a store. All `deadline`s are moments on the port's clock."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend promises; may depend on its URL, never on the server's mood."""
        ...

    def open(self, port: Port, signals: Signals) -> None:
        """Bind to the port that will drive this backend. No I/O."""

    async def close(self) -> None:
        """Close connections. The core has released and withdrawn everything it could before."""

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        """Take it if it is free, in one round trip. If it is not and `queue`, join the line in the
        same trip (or keep the place this owner already has). Without `queue`, leave no trace."""
        ...

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        """Until this queued claim is granted, or until another `attempt` is worth making (None),
        or the deadline. Sends the heartbeats that keep the claim's place. Never polls faster."""
        ...

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        """Leave the line; if the grant had come already, give it back with hand-over. `Released`
        means confirmed: nothing of this claim is left and, with `tombstone`, nothing will appear
        for one ttl, though some request of it may still be under way."""
        ...

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        """Extend each grant to its full ttl if it still holds: one batch, one answer each."""
        ...

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        """Give it up, in one round trip, handing over to the next in line. With `tombstone`, late
        attempts of this owner are refused for one ttl (some request of it is unanswered)."""
        ...

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        """Who holds and who waits, for every name that begins with `prefix` (or, when `exact`, is
        it), sorted by name; names that nobody holds or waits for are left out."""
        ...

    async def evict(self, name: str, deadline: float) -> int:
        """The operator's force-release: end all holders (not the line); how many there were."""
        ...

    async def cell_read(self, name: str, deadline: float) -> Cell | None: ...

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
        """Write, or delete when `value` is None. `expect`: the version to replace, 0 for "must not
        exist", None for "whatever is there". `fence`: refused when a higher one wrote before, even
        if the cell is empty now. `ttl`: forgotten after so many seconds."""
        ...

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        """Until the cell's version differs from `version` (0: until it exists) and return it as it
        then is, None meaning empty; or return it unchanged at the deadline. A change that is not
        told of is seen at the deadline only: who waits for long waits again and again."""
        ...


@runtime_checkable
class Together(Protocol):
    """A store that can take several exclusive claims in one step. Others, and names of which this
    cannot be said, are asked for one after another."""

    async def attempt_together(
        self, claims: Sequence[Claim], deadline: float
    ) -> Sequence[Grant] | Busy | Unknown:
        """All of them, in one step, if all are free and nobody waits for any. Else none, and no
        trace: `Busy` then only says that they are not to be had so."""
        ...

    async def release_together(
        self, grants: Sequence[Grant], deadline: float
    ) -> list[Released | AlreadyLost | Unknown]:
        """As `release`, with a tombstone for who is `unanswered`; one answer each."""
        ...


@runtime_checkable
class Downgrading(Protocol):
    """A store that can make a writer a reader in one step: no other writer comes between."""

    async def downgrade(self, grant: Grant, deadline: float) -> Lost | Unknown | None:
        """The exclusive claim that holds becomes a shared one, whoever waits; None: it is one now.
        Asking twice is asking once. Readers who wait, with no writer before them, are let in."""
        ...


class Turn(Protocol):
    """One attempt's, from before it is made until it is over, whatever became of it."""

    @property
    def since(self) -> float:
        """What the attempt says of the store's silence counts from then."""
        ...

    def over(self, answered: bool) -> None:
        """Never waits."""


@runtime_checkable
class InTurn(Protocol):
    """A store of which a client asks only so much at once. Who has more to ask stands in a line of
    its own before each attempt: that is no silence of the store, as long as it answers others."""

    async def turn(self, patience: float, deadline: float) -> Turn:
        """Wait until an attempt may be made, or nothing was answered for so many seconds, or the
        deadline: the attempt then says what is wrong. Whoever drops a turn has given it back."""
        ...


@runtime_checkable
class Tabular(Protocol):
    """A store whose tables an operator may have to make."""

    @property
    def ddl(self) -> list[str]:
        """The statements that make them, in order; harmless where they are there already."""
        ...


@runtime_checkable
class Nascent(Protocol):
    """A store that its first lock makes, and that nobody makes by looking: `inspect` and `evict`
    find nothing where there is none."""

    def exists(self) -> bool:
        """Whether it is there."""
        ...


@runtime_checkable
class Swept(Protocol):
    """A store in which something stays when its time is over, until somebody forgets it. Clients do
    so now and then while they use it; an operator may at any time."""

    async def sweep(self, idle: float, deadline: float) -> int:
        """Forget what is over, and names unused for so many seconds; how much there was."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store that can write the user's own keys in one step with comparing that a lease holds."""

    async def transact(
        self,
        guard: TxnGuard,
        put: Mapping[bytes, bytes],
        delete: Sequence[bytes],
        deadline: float,
    ) -> int | Unknown | None:
        """All of it, or nothing: the store's revision then, or None if the guard did not hold."""
        ...
