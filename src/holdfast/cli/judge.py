"""Whether what `holdfast demo` recorded keeps what holdfast promises. Records in, words out.

Contract: each promise is a sentence made of figures that were measured, with whether it was kept;
what was not kept is never left out. Moments are CLOCK_BOOTTIME of one host, so they compare.
Partner: `demo.py`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "Account",
    "Hold",
    "Line",
    "Pause",
    "Refused",
    "judge_contention",
    "judge_crash",
    "judge_pause",
]

Verdict = Callable[[bool, str], None]
Line = list[tuple[str, int]]
"""A waiting line as the store showed it: who, and which of its turns; first in line first."""


@dataclass
class Hold:
    """From when to when somebody had the lock, by its own word; `asked` is when it got in line."""

    name: str
    turn: int
    asked: float
    start: float
    fence: int
    end: float | None = None


def judge_contention(verdict: Verdict, holds: Sequence[Hold], lines: Sequence[Line]) -> None:
    """Mutual exclusion, order, tokens and the time of a hand-over."""
    ordered = sorted(holds, key=lambda hold: hold.start)
    changes = list(itertools.pairwise(ordered))
    together = sum(one.end is None or other.start < one.end for one, other in changes)
    verdict(
        not together, f"{len(ordered)} holds by {_people(holds)}; two at once: {together} times"
    )

    started = {(hold.name, hold.turn): hold.start for hold in holds}
    overtakes = 0
    for line in lines:
        granted = [started[place] for place in line if place in started]
        overtakes += granted != sorted(granted)
    verdict(
        not overtakes,
        f"the waiting line was looked at {len(lines)} times; overtakes after it: {overtakes}",
    )
    back = sum(other.fence <= one.fence for one, other in changes)
    verdict(not back, f"fencing tokens that did not grow from one holder to the next: {back}")

    # Only hand-overs to somebody who was waiting already: the others measure the worker's idling.
    gaps = [b.start - a.end for a, b in changes if a.end is not None and b.asked < a.end]
    if gaps:
        typical = statistics.median(gaps) * 1e3
        verdict(True, f"from a release to the next process's start: {typical:.1f} ms (median)")


def judge_crash(verdict: Verdict, holds: Sequence[Hold], killed: float, promise: float) -> None:
    """After SIGKILL the next one has the lock in time."""
    later = [hold for hold in holds if hold.start > killed]
    if not later:
        verdict(False, "nobody had the lock after its holder was killed")
        return
    first = min(later, key=lambda hold: hold.start)
    waited = first.start - killed
    verdict(
        waited <= promise,
        f"{waited * 1e3:.0f} ms after its holder was killed {first.name} had the lock "
        f"(promised: {promise:g} s)",
    )


def _people(holds: Sequence[Hold]) -> str:
    names = len({hold.name for hold in holds})
    return f"{names} process{'' if names == 1 else 'es'}"


# -- a resource that checks tokens -----------------------------------------------------------------


class Refused(Exception):
    """The resource has seen a newer fencing token."""


class Account:
    """A resource. With `checks` it remembers the highest token and refuses a smaller one."""

    def __init__(self, balance: int, checks: bool) -> None:
        self.balance = balance
        self._highest = 0 if checks else None

    def write(self, balance: int, fence: int) -> None:
        if self._highest is not None:
            if fence < self._highest:
                raise Refused(f"token {fence} is older than {self._highest}")
            self._highest = fence
        self.balance = balance


@dataclass
class Pause:
    """What became of a holder that was stopped for longer than its lease, and of the next one."""

    ttl: float
    stopped: float = 0.0
    next_start: float = 0.0
    fence: int = 0
    next_fence: int = 0
    held_on_waking: bool | None = None
    refused: tuple[str, ...] = ()
    kept: bool | None = None  # what its release() said
    careless: int = 0
    careful: int = 0
    expected: int = 0


def judge_pause(verdict: Verdict, pause: Pause) -> None:
    waited = pause.next_start - pause.stopped
    verdict(
        0 < waited <= pause.ttl + 1.5,
        f"{waited:.2f} s after its holder was stopped the next process had the lock "
        f"(lease: {pause.ttl:g} s)",
    )
    verdict(
        pause.held_on_waking is False and pause.kept is False,
        f"waking up, the stopped one saw at its first look: held = {pause.held_on_waking}; "
        f"its release returned {pause.kept}",
    )
    verdict(
        pause.fence < pause.next_fence and pause.refused == ("ada",),
        f"writes refused by their token: {', '.join(pause.refused) or 'none'}",
    )
    verdict(
        pause.careful == pause.expected != pause.careless,
        f"balance where tokens are checked: {pause.careful} (right is {pause.expected}); "
        f"where they are not: {pause.careless}",
    )
