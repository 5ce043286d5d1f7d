"""The words that the core and the backends exchange: claims, and what became of them.

Contract: plain values, no behaviour beyond a property, nothing imported but the standard library.
Times are seconds on the port's clock (`Port.now`), never wall-clock time; durations are seconds.
Partner: `core/backend.py` says when each of these is used.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AlreadyLost",
    "Buried",
    "Busy",
    "Capabilities",
    "Cell",
    "CellConflict",
    "Claim",
    "ClaimInfo",
    "Grant",
    "LockInfo",
    "Lost",
    "Mode",
    "Released",
    "Renewed",
    "TxnGuard",
    "Unknown",
]


class Mode(enum.Enum):
    """How a claim shares a name with others."""

    EXCLUSIVE = "exclusive"  # alone
    SHARED = "shared"  # together with other shared claims
    PERMITS = "permits"  # together with other permits, up to a limit


@dataclass(slots=True, eq=False)
class Claim:
    """One wish to hold one name, from the moment it is made until nothing of it is left.

    `owner` is fresh for every acquire (law 3): it identifies this claim and no other, for ever,
    so asking twice with the same owner is asking once.
    """

    name: str
    owner: str
    mode: Mode = Mode.EXCLUSIVE
    ttl: float = 30.0
    fair: bool = True
    permits: int = 1  # how many of `limit` this claim takes; only in mode PERMITS
    limit: int = 1
    info: Mapping[str, str] = field(default_factory=dict[str, str])  # host, pid, label, metadata
    fixed: bool = False  # nobody will renew it unasked: it must last its whole ttl

    # Kept by the core: some request of this claim never got its answer, so it may still arrive.
    unanswered: bool = False

    def __repr__(self) -> str:
        # Law 9: the owner id is a secret; whoever knows it can release the lock.
        return f"Claim({self.name!r}, {self.mode.value}, ttl={self.ttl:g})"


# -- what an attempt may say ----------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Grant:
    """The claim holds. `until` is dated from *before* the request was sent (law 1)."""

    claim: Claim
    until: float
    fence: int | None = None
    confirm_by: float | None = None  # the store takes it back unless it hears a renewal by then
    token: Any = None  # whatever the backend wants to see again: a key, a revision, a connection
    certain_until: float = math.inf  # as `Signals.certain_until` says it, from the first moment on


@dataclass(slots=True, frozen=True)
class TxnGuard:
    """What a transaction of the store itself can compare to take effect only while a lease holds:
    the key exists, and was created at this revision."""

    key: bytes
    create_revision: int


@dataclass(slots=True, eq=False)
class Busy:
    """Somebody else holds, or is first. Says what an error message needs to be useful."""

    holder: str = ""  # e.g. "web-3:4711 (nightly import)"; empty when the store cannot tell
    ahead: int | None = None  # claims in line before ours
    token: Any = None


@dataclass(slots=True, eq=False)
class Buried:
    """This owner was withdrawn, and its tombstone refuses it: who still wants the lock stands in
    line as somebody new."""


@dataclass(slots=True, eq=False)
class Unknown:
    """No answer: the request may have been applied, may be applied later, or never (law 2)."""

    reason: str


# -- what a renewal and a release may say ---------------------------------------------------------


@dataclass(slots=True, eq=False)
class Renewed:
    """Still ours, until then (dated from before the request was sent)."""

    until: float


@dataclass(slots=True, eq=False)
class Lost:
    """The store says that this claim does not hold."""

    reason: str


@dataclass(slots=True, eq=False)
class Released:
    """It was ours until this release."""


@dataclass(slots=True, eq=False)
class AlreadyLost:
    """It was not ours any more when the release arrived; nothing was changed."""

    reason: str


# -- cells ----------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Cell:
    """A small value with a version. Versions of a name only grow, also after it was deleted."""

    value: bytes
    version: int


@dataclass(slots=True, frozen=True)
class CellConflict:
    """The write was refused: the version was another, or a newer fence has written before."""

    current: Cell | None
    reason: str


# -- what an operator may see ---------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class ClaimInfo:
    """One holder or waiter, as `ls` and `show` print it. `id` is a short hash of the owner."""

    id: str
    mode: Mode
    since: float  # seconds ago
    remaining: float | None  # seconds until it expires by itself; None when it cannot be known
    permits: int = 1
    fence: int | None = None
    info: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True, frozen=True)
class LockInfo:
    """Who holds a name and who waits for it, in order."""

    name: str
    holders: tuple[ClaimInfo, ...]
    waiters: tuple[ClaimInfo, ...]
    fence: int | None = None  # the last token handed out


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What a backend promises, and what it cannot. Tests and documentation are driven by this."""

    modes: frozenset[Mode]
    fairness: str  # "fifo", "best effort" or "none"
    fencing: frozenset[Mode]  # the modes whose grants carry a token
    crash_release: str  # what frees a dead holder's lock: "ttl", "session", "process", "connection"
    failover: str  # one sentence: what a restart or failover of the store can lose
    cross_process: bool = True
    cells: bool = True
    inspection: bool = True
    why_not: str = ""  # one sentence: why it has not the other modes
