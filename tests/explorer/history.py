"""What happened, and whether it may: the invariants at the end of faults.md.

Contract: pure functions over records. A hold's core is [acquire returned, min(release called, loss
seen, local deadline, crash)]: inside it the holder believed, and was entitled to believe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.core.hold import Hold
from holdfast.types import Mode

EPSILON = 1e-9


@dataclass(slots=True, eq=False)
class Record:
    """One acquire of one worker."""

    who: str
    name: str
    mode: Mode
    permits: int
    limit: int
    fair: bool
    blocking: bool
    started: float
    acked: float = math.inf  # the store confirmed the place in line
    acquired: float = math.inf
    released: float = math.inf  # release was called
    lost: float = math.inf
    crashed: float = math.inf
    evicted: float = math.inf  # by an operator: from then on two may believe, that is the point
    deadline: float = math.inf  # after which it leaves the line
    gave_up: float = math.inf  # busy, unavailable or cancelled before it held
    reentry: bool = False
    hold: Hold | None = None

    @property
    def end(self) -> float:
        until = math.inf if self.hold is None else self.hold.until
        return min(self.released, self.lost, self.crashed, self.evicted, until)

    @property
    def held(self) -> bool:
        return self.acquired < math.inf

    def __str__(self) -> str:
        fence = None if self.hold is None else self.hold.fence
        return (
            f"{self.who} {self.name} {self.mode.value} fence={fence} started={self.started:.3f} "
            f"acked={self.acked:.3f} core=[{self.acquired:.3f}, {self.end:.3f}]"
        )


@dataclass(slots=True)
class Report:
    """What one schedule showed."""

    violations: list[str] = field(default_factory=list[str])
    records: list[Record] = field(default_factory=list[Record])
    steps: int = 0
    faults: list[str] = field(default_factory=list[str])
    trace: list[str] = field(default_factory=list[str])


def violations(records: Iterable[Record], faultless: bool) -> list[str]:
    held = [r for r in records if r.held and not r.reentry]
    found: list[str] = []
    for name in sorted({r.name for r in held}):
        group = sorted((r for r in held if r.name == name), key=lambda r: r.acquired)
        found += exclusion(group)
        found += fencing(group)
    if faultless:
        found += overtakes(list(records))
    return found


def exclusion(group: list[Record]) -> list[str]:
    """Cores of incompatible holds are disjoint; permits never exceed their limit."""
    found: list[str] = []
    for index, late in enumerate(group):
        if late.end <= late.acquired:
            continue
        together = [e for e in group[:index] if e.end > late.acquired + EPSILON]
        found += [f"both held: {early} | {late}" for early in together if clash(early, late)]
        if late.mode is Mode.PERMITS:
            taken = late.permits + sum(e.permits for e in together if e.mode is Mode.PERMITS)
            if taken > late.limit:
                found.append(f"{taken} of {late.limit} permits held at {late.acquired:.3f}: {late}")
    return found


def clash(one: Record, other: Record) -> bool:
    return Mode.EXCLUSIVE in (one.mode, other.mode) or one.mode is not other.mode


def fencing(group: list[Record]) -> list[str]:
    """Tokens of exclusive holds are unique and grow along real time; a reader's token is at least
    that of every writer that was done before the reader asked."""
    found: list[str] = []
    writers = [r for r in group if r.mode is Mode.EXCLUSIVE]
    tokens = [r.hold.fence for r in writers if r.hold is not None]
    if len(set(tokens)) != len(tokens) or None in tokens:
        found.append(f"tokens repeat or are missing: {tokens}")
    for early in writers:
        for late in group:
            if late.hold is None or early.hold is None or late.mode is Mode.PERMITS:
                continue
            after = early.acquired < late.started
            smaller = (late.hold.fence or 0) < (early.hold.fence or 0)
            if after and smaller:
                found.append(f"token went back: {early} then {late}")
    return found


def overtakes(records: list[Record]) -> list[str]:
    """FIFO among acknowledged places of fair exclusive claims."""
    queued = [r for r in records if r.fair and r.mode is Mode.EXCLUSIVE and r.acked < math.inf]
    return [
        f"overtaken: {early} by {late}"
        for early in queued
        for late in records
        if late.fair
        and late.name == early.name
        and late.mode is Mode.EXCLUSIVE
        and not late.reentry
        and early.acked < late.started
        and late.acquired < min(early.acquired, early.gave_up, early.deadline)
    ]
