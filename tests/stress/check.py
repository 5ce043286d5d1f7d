"""Whether what happened may happen: the invariants at the end of faults.md.

Contract: pure functions over a history. Each finds its kind of violation and says which holds show
it; `Violation.kind` is one of KINDS, and `faults/test_stress.py` shows that each can be found.
Partners: `history.py`; `explorer/history.py`, the same for schedules under a fake clock.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from holdfast.types import Mode
from tests.stress.history import Hold, Wait
from tests.stress.resource import Write

__all__ = ["KINDS", "Liveness", "Violation", "judge", "liveness"]

KINDS = (
    "both held",
    "too many permits",
    "token missing",
    "token twice",
    "token went back",
    "stale write accepted",
    "holder's write refused",
    "nobody served",
)

Span = tuple[float, float]


class Violation(NamedTuple):
    kind: str
    text: str
    at: float | None = None  # when it began, if it is of one moment


def judge(holds: Iterable[Hold], writes: Iterable[Write]) -> list[Violation]:
    groups: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        groups[hold.name].append(hold)
    found: list[Violation] = []
    for name in sorted(groups):
        group = sorted(groups[name], key=attrgetter("acquired"))
        found += exclusion(group)
        found += tokens(group)
        found += refusals(group)
    found += stale(writes)
    return found


def exclusion(group: Sequence[Hold]) -> Iterator[Violation]:
    """Cores of incompatible holds are disjoint; permits never exceed their limit. `group` is one
    name's, in the order in which they began."""
    active: list[tuple[float, int, Hold]] = []
    for index, late in enumerate(group):
        if late.end <= late.acquired:
            continue  # it knew from the start that it was too late
        while active and active[0][0] <= late.acquired:
            heapq.heappop(active)
        for _, _, early in active:
            if Mode.EXCLUSIVE in (early.mode, late.mode) or early.mode is not late.mode:
                overlap = min(early.end, late.end) - late.acquired
                text = f"for {overlap * 1e3:.3f} ms: {early} | {late}"
                yield Violation("both held", text, late.acquired)
        if late.mode is Mode.PERMITS:
            taken = late.permits + sum(h.permits for _, _, h in active if h.mode is Mode.PERMITS)
            if taken > late.limit:
                others = " | ".join(str(hold) for _, _, hold in active)
                text = f"{taken} of {late.limit}: {others} | {late}"
                yield Violation("too many permits", text, late.acquired)
        heapq.heappush(active, (late.end, index, late))


def tokens(group: Sequence[Hold]) -> Iterator[Violation]:
    """Of exclusive holds they are unique. Whoever asked after a writer had its token has a larger
    one (a reader: no smaller one); and so has, in the order of their cores, every next writer."""
    writers = [hold for hold in group if hold.mode is Mode.EXCLUSIVE]
    owners: dict[int, Hold] = {}
    for hold in writers:
        if hold.fence is None:
            yield Violation("token missing", str(hold))
        elif hold.fence in owners:
            yield Violation("token twice", f"{owners[hold.fence]} | {hold}")
        else:
            owners[hold.fence] = hold
    highest: Hold | None = None
    known = iter(writers)
    coming = next(known, None)
    for late in sorted(group, key=attrgetter("asked")):
        while coming is not None and coming.acquired < late.asked:
            if highest is None or _token(coming) > _token(highest):
                highest = coming
            coming = next(known, None)
        if highest is not None and late.fence is not None and late.fence < _token(highest):
            yield Violation("token went back", f"{highest} then {late}")
    before: Hold | None = None
    for hold in writers:
        if hold.end <= hold.acquired:
            continue
        if before is not None and _token(hold) < _token(before):
            yield Violation("token went back", f"{before} then {hold}")
        before = hold


def _token(hold: Hold) -> int:
    return -1 if hold.fence is None else hold.fence


def refusals(group: Iterable[Hold]) -> Iterator[Violation]:
    """The resource refuses nobody who holds: then a smaller token came later, or two held."""
    for hold in group:
        if hold.refused is not None and hold.acquired <= hold.refused < hold.end:
            text = f"at {hold.refused:.6f}: {hold}"
            yield Violation("holder's write refused", text, hold.refused)


def stale(writes: Iterable[Write]) -> Iterator[Violation]:
    """`writes` are in the order in which they were accepted."""
    highest: dict[str, Write] = {}
    for write in writes:
        before = highest.get(write.name)
        if before is not None and write.token < before.token:
            yield Violation("stale write accepted", f"{before} then {write}")
        else:
            highest[write.name] = write


# -- liveness -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Liveness:
    """How long nobody held a name although somebody waited, and no worker was stopped: seconds."""

    gaps: list[float] = field(default_factory=list[float])  # every hand-over to somebody who waited
    worst: float = 0.0  # of these, and of what began when somebody came to a free name
    longest: str = ""
    violations: list[Violation] = field(default_factory=list[Violation])

    def quantile(self, share: float) -> float:
        gaps = sorted(self.gaps)
        return gaps[min(len(gaps) - 1, int(share * len(gaps)))] if gaps else 0.0


def liveness(
    holds: Iterable[Hold], waits: Iterable[Wait], stopped: Iterable[Span], limit: float
) -> Liveness:
    """`limit`: who waits longer than that for nobody is stuck (R2)."""
    found = Liveness()
    cores: dict[str, list[Span]] = defaultdict(list)
    wanted: dict[str, list[Span]] = defaultdict(list)
    for hold in holds:
        if hold.end > hold.acquired:
            cores[hold.name].append((hold.acquired, hold.end))
    for wait in waits:
        if wait.blocking and wait.end > wait.asked:
            wanted[wait.name].append((wait.asked, wait.end))
    stops = _union(stopped)
    for name in sorted(wanted):
        held = _union(cores[name])
        ends = {end for _, end in held}
        for start, end in _minus(_minus(_union(wanted[name]), held), stops):
            length = end - start
            if start in ends:  # somebody waited already when the one before was done
                found.gaps.append(length)
            if length > found.worst:
                found.worst = length
                found.longest = f"{name} [{start:.6f}, {end:.6f}]"
            if length > limit:
                text = f"{name} for {length:.3f} s: [{start:.6f}, {end:.6f}]"
                found.violations.append(Violation("nobody served", text))
    found.gaps.sort()
    return found


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same, in order and without overlaps."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _minus(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """What of these is in none of those; both in order and without overlaps."""
    left: list[Span] = []
    index = 0
    for start, end in spans:
        while index < len(holes) and holes[index][1] <= start:
            index += 1
        at = index
        while at < len(holes) and holes[at][0] < end:
            if holes[at][0] > start:
                left.append((start, holes[at][0]))
            start = max(start, holes[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return [(start, end) for start, end in left if end - start > 0 and end < math.inf]
