"""What a backend adds for the crash detector: links by which clients are seen, and a roll of them.

Contract: docs/concepts/crash-detector.md, whose words these are. A backend that has `appear` and
`roll` is `Detectable`; it knows nothing of graces and suspicions. Partners: `core/vouching.py`, the
client's half; `sentinel/detector.py`, the detector's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from holdfast.core.backend import Backend
from holdfast.core.stores import WATCHED
from holdfast.errors import Unsupported

__all__ = [
    "KEY", "NAME", "Detectable", "Link", "Look", "Roll", "Suspect", "detectable", "grace_of",
]  # fmt: skip

KEY = "presence"
"""Where a claim's info says whose it is; also the name of that client's links."""

NAME = "holdfast:"
"""What the names of links begin with; the presence follows."""


def grace_of(presence: str) -> float:
    """The seconds that a presence asks for: it is an id, a slash and these. Infinite if it is none
    of ours, so that nobody is taken for dead by mistake."""
    try:
        grace = float(presence.partition("/")[2])
    except ValueError:
        return math.inf
    return grace if grace > 0 else math.inf


class Link(Protocol):
    """One connection on which the store sees this client (Redlock: one to each node). Everything
    raises `Unavailable` when it is of no use any more."""

    async def ping(self, deadline: float) -> None:
        """A round trip that only a server answers which the detector looks at."""
        ...

    async def rest(self, until: float) -> None:
        """Until then; raises as soon as the connection's end is seen."""
        ...

    def cut(self) -> None:
        """Make `rest` and `ping` fail; from any thread, never blocks."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """Who is seen, by the presences that their links are named after; and on what ground."""

    ground: Hashable
    """Equal as long as servers, topology and the detector's own connections are the same."""
    present: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Suspect:
    """A claim whose client is absent."""

    name: str
    presence: str
    id: str
    """As `inspect` shows it."""
    info: Mapping[str, str]
    stamp: Any
    """Changed by every grant and renewal."""
    token: Any = field(default=None, repr=False)
    """Whatever `free` needs beside it."""
    since: float = math.inf
    """Kept by the detector: from when on its absence counts."""


class Roll(Protocol):
    """How the detector looks, and what it does. Raises `Unavailable` when it cannot be known."""

    @property
    def complete(self) -> bool:
        """Whether a look sees everybody; else those only of whom `claims` has found something:
        then the detector searches as often as it looks."""
        ...

    async def look(self, deadline: float) -> Look:
        """On all servers that may have links; one that does not answer makes it fail."""
        ...

    async def claims(self, present: Collection[str], deadline: float) -> list[Suspect]:
        """All held claims whose info has a presence that is not among these."""
        ...

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        """For each, in one atomic step: if its stamp is the same, end it and hand over (laws 5, 6).
        False: the stamp is another, or it is gone. None: not known."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Detectable(Backend, Protocol):
    """A backend whose clients' crashes can be detected. It says nothing by `certain_until` itself:
    `Vouched` does."""

    async def appear(self, presence: str, deadline: float) -> Link:
        """A new link, named so. Raises `Unavailable`, or `Misconfigured` when trying again is no
        use. The next time another server is tried, where there are several."""
        ...

    def roll(self) -> Roll:
        """For the detector; after `open`."""
        ...


def detectable(backend: Backend, store: str) -> Detectable:
    if not isinstance(backend, Detectable):
        raise Unsupported(
            f"{store} has no use for a crash detector (crash_grace, `holdfast sentinel`): it "
            "frees what a dead client holds by itself, or cannot tell that it died. "
            f"{WATCHED} can"
        )
    return backend
