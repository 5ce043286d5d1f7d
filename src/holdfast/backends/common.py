"""What several backends need and no protocol asks for: who may hold beside whom, who somebody is,
who was withdrawn, who may write a cell, and how a name is spelled where some characters have a
meaning.

Contract: no I/O, nothing of any store. Partners: the backends' folders, and `local.py`.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast
from urllib.parse import unquote

from holdfast.core.names import shown
from holdfast.errors import Unsupported
from holdfast.types import Cell, CellConflict, Claim, Mode, Unknown

__all__ = [
    "NEWER_FENCE",
    "OTHER_VERSION",
    "NoCells",
    "Tombstones",
    "Written",
    "admits",
    "conflict",
    "holder_of",
    "holders",
    "info_of",
    "info_text",
    "name_of",
    "public_id",
    "shown",
    "spelled",
]

T = TypeVar("T")

OTHER_VERSION = "its version is another"
NEWER_FENCE = "a newer fencing token has written before"


def admits(holding: Mode | None, taken: int, mode: Mode, permits: int, limit: int) -> bool:
    """THE compatibility rule: whether a claim may join holders, who all share one mode and have
    `taken` so many permits together."""
    if holding is None:
        return True
    if holding is Mode.EXCLUSIVE or holding is not mode:
        return False
    return holding is Mode.SHARED or taken + permits <= limit


class InLine(Protocol):
    @property
    def mode(self) -> Mode: ...
    @property
    def permits(self) -> int: ...
    @property
    def limit(self) -> int: ...


def holders(line: Iterable[InLine]) -> list[bool]:
    """For each of a line, whether it holds: whoever may join all that are ahead."""
    held: list[bool] = []
    ahead: Mode | None = None
    taken = 0
    for one in line:
        held.append(admits(ahead, taken, one.mode, one.permits, one.limit))
        # Nobody joins those that have not one mode, as nobody joins an exclusive one.
        ahead = one.mode if ahead is None or ahead is one.mode else Mode.EXCLUSIVE
        taken += one.permits
    return held


class NoCells:
    """A backend that keeps no values. (Tools that need them have looked at its capabilities.)"""

    no_cells: ClassVar[str]
    """What to say to who asks for one all the same."""

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        raise Unsupported(self.no_cells)

    async def cell_write(
        self, name: str, value: bytes | None, **options: Any
    ) -> Cell | CellConflict | Unknown:
        raise Unsupported(self.no_cells)

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        raise Unsupported(self.no_cells)


def info_text(info: Mapping[str, str]) -> str:
    """What a claim says about itself, as a store keeps it."""
    return json.dumps(dict(info), ensure_ascii=False, separators=(",", ":"))


class Written(Generic[T]):
    """What claims say about themselves, as a store wants to have it: written once for all claims of
    a lock, which share one object."""

    __slots__ = ("_last", "_write")

    def __init__(self, write: Callable[[str], T]) -> None:
        self._write = write
        self._last: tuple[Mapping[str, str] | None, T] = None, write("")

    def of(self, info: Mapping[str, str]) -> T:
        last = self._last
        if last[0] is not info:
            last = self._last = info, self._write(info_text(info))
        return last[1]


def info_of(text: str | bytes) -> Mapping[str, str]:
    """The same read again: nothing, if somebody else has written there."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    pairs = cast(dict[str, object], found)
    return {key: str(value) for key, value in pairs.items()}


@functools.lru_cache(64)
def holder_of(text: str | bytes) -> str:
    """Who holds, by what its claim says about itself; empty when that is not known."""
    return shown(info_of(text)) if text else ""


def public_id(owner: str) -> str:
    """What may be shown of an owner (law 9)."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


def conflict(
    current: Cell | None, highest: int | None, expect: int | None, fence: int | None
) -> CellConflict | None:
    """Why a cell may not be written; `highest` is the highest fence that has written it."""
    if expect is not None and expect != (0 if current is None else current.version):
        return CellConflict(current, OTHER_VERSION)
    if fence is not None and highest is not None and fence < highest:
        return CellConflict(current, NEWER_FENCE)
    return None


def spelled(name: str, marks: re.Pattern[str]) -> str:
    """The name with the bytes of these characters as % and two digits. With `%` among them no two
    names are spelled alike."""
    return marks.sub(_bytes_of, name)


def _bytes_of(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def name_of(text: str, marks: re.Pattern[str]) -> str | None:
    """The name that is spelled like this; None if none is."""
    name = unquote(text, errors="replace")
    return name if spelled(name, marks) == text else None


class Tombstones:
    """Owners that were withdrawn while a request of theirs may still be on its way (law 3). That
    request comes from this process or not at all, so this is the place to remember them."""

    __slots__ = ("_graves", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._graves: list[tuple[float, str]] = []  # the same, soonest first

    def bury(self, claim: Claim, now: float) -> None:
        """It was withdrawn: until a ttl from now."""
        self.forget(now)
        until = now + claim.ttl
        heapq.heappush(self._graves, (until, claim.owner))
        self._until[claim.owner] = until

    def cover(self, owner: str, now: float) -> bool:
        if not self._graves:  # as nearly always
            return False
        self.forget(now)
        return owner in self._until

    def forget(self, now: float) -> None:
        graves = self._graves
        while graves and graves[0][0] <= now:
            owner = heapq.heappop(graves)[1]
            if self._until.get(owner, math.inf) <= now:
                del self._until[owner]

    def clear(self) -> None:
        self._graves.clear()
        self._until.clear()

    def left(self) -> list[float]:
        return list(self._until.values())
