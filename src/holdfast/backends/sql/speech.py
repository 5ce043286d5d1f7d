"""What a connection-bound strategy says to its database: the texts, and how to read the answers.

Contract: `bound.py` decides, this speaks. A lock is taken in one trip if it is free (`attempt`); to
wait, `join` is sent, whose last but one statement blocks in the server until the lock is ours:
its first `early` results say at once that the server has it, and what its clock says.
Partners: `mysql/speech.py`, `postgres/speech.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.backends.sql.session import Result, Session, Statement
from holdfast.types import Claim, Mode

__all__ = ["Named", "RowSpeech", "Speech", "Taken", "Verdict"]


class Named(Protocol):
    """What tells a session from all others, in the server's speech."""

    number: int
    mark: str


class Verdict(enum.Enum):
    """What became of an attempt that took nothing."""

    BUSY = "somebody else has it"
    MISSING = "there is no row to lock yet"


class Taken(NamedTuple):
    fence: int | None
    moment: int = 0  # the server's clock after it was taken, in microseconds; only of `join`


class Speech(Protocol):
    @property
    def modes(self) -> frozenset[Mode]: ...

    @property
    def fenced(self) -> frozenset[Mode]: ...

    @property
    def early(self) -> int:
        """So many results of `join` come before it blocks; the last is the server's clock."""
        ...

    @property
    def ping(self) -> Statement: ...

    @property
    def undo(self) -> Sequence[Statement]:
        """What puts a session in order that took nothing."""
        ...

    def arrange(self, session: Session, ttl: float) -> list[Statement]:
        """The session's time limits, if they are not set yet: what the server ends by itself."""
        ...

    def attempt(self, claim: Claim) -> list[Statement]: ...

    def join(self, claim: Claim) -> list[Statement]: ...

    def taken(self, results: Sequence[Result]) -> Taken | Verdict:
        """What `attempt` or `join` brought."""
        ...

    def release(self, claim: Claim) -> list[Statement]: ...

    def released(self, results: Sequence[Result]) -> bool: ...

    def missing(self, claim: Claim) -> list[Statement]:
        """After `Verdict.MISSING`: what makes the row. In a transaction of its own."""
        ...

    def cancel(self, session: Named) -> Statement:
        """Makes another session's statement fail with a code of `cancelled`."""
        ...

    @property
    def cancelled(self) -> frozenset[str]: ...

    def interrupted(self, results: Sequence[Result]) -> bool:
        """Whether a `join` says by its results, and not by an error, that it was cancelled."""
        ...

    def kill(self, session: Named) -> Statement:
        """Ends another session, if it is still the same one; no rows once it is gone."""
        ...

    def finish(self, found: int) -> Statement | None:
        """What must be said in addition, to the one that `kill` found: no other can be meant."""
        ...

    def bump(self, claim: Claim) -> Statement | None:
        """Where the token cannot come from the session that holds the lock: what another one says
        to get it. The session must then prove that it still lives."""
        ...

    def bumped(self, result: Result) -> int: ...

    def holders(self, name: str) -> Statement:
        """Who has it and who waits: (number, mark, granted, exclusive, seconds)."""
        ...

    @property
    def schema(self) -> list[str]:
        """What must exist, as DDL that may be repeated."""
        ...

    @property
    def absent(self) -> frozenset[str]:
        """Codes that mean that the schema does not exist."""
        ...

    @property
    def greeting(self) -> Callable[[Session, float], Awaitable[None]]:
        """Run on every new session: refuses poolers and clusters, and sets up what tokens need."""
        ...


class RowSpeech(Speech, Protocol):
    """Of locks that are locks of rows, which are made and must be forgotten again."""

    def old(self, after: bytes, idle: float, most: int) -> Statement:
        """So many names behind this one, in order, whose rows were made so many seconds ago."""
        ...

    def forget(self, claim: Claim) -> list[Statement]:
        """Deletes the row of a name, if nobody has locked it; else it is refused."""
        ...
