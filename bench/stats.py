"""From stamps to figures: pure arithmetic, where a mistake would make them pretty and wrong.

Contract: standard library only (workers of every peer import it), no clock, no process. Stamps are
nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. Latencies are given in
microseconds unless a figure's name says otherwise.

Defined once, here:

* A **change** is a turn of another waiter than the turn before. **Hand-over**: from the call of
  `release` until the next waiter's `acquire` returned.
* An **overtake** is a turn of somebody who began to ask when another already stood in line, and
  got it first. When a waiter stands in line is known exactly for holdfast (the store said so); of
  a peer we only know when it was called, and take it to be in line `SURELY` later, so that a
  peer's count is a lower bound.
* An **overlap** is a turn that began before the one before it was over: no lock at all.
* The **longest gap** is the longest time that any waiter went without a turn.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = [
    "SURELY",
    "WORST",
    "Figures",
    "Ratio",
    "Turn",
    "changes",
    "contest",
    "jain",
    "latencies",
    "overtakes",
    "paired",
    "quantile",
    "summary",
]

Figures = dict[str, float]
"""What one run measured."""

SURELY = 20_000_000
"""A peer that was called so many nanoseconds ago, and did not return, stands in line."""

WORST = frozenset({"overtakes", "overlaps", "lost", "left over"})
"""Figures of which the worst run is given, not the median: once is too often."""


class Turn(NamedTuple):
    """One acquire and release of one waiter."""

    waiter: int
    began: int  # acquire was called
    queued: int | None  # surely in line from then on; None: it never had to be
    got: int  # acquire returned
    left: int  # release was called


class Ratio(NamedTuple):
    """Of one figure: the median of paired ratios, and their range."""

    median: float
    lowest: float
    highest: float
    pairs: int


def quantile(values: Sequence[float], share: float) -> float:
    """Of a sorted sequence: the smallest value that `share` of all values do not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def latencies(nanoseconds: Iterable[int], prefix: str = "") -> Figures:
    taken = sorted(nanoseconds)
    return {f"{prefix}p{share}": quantile(taken, share / 100) / 1e3 for share in (50, 99)}


def jain(counts: Sequence[int]) -> float:
    """Jain's fairness index: 1 when all had the same, 1/n when one had everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else math.nan


def overtakes(turns: Sequence[Turn]) -> int:
    """How many turns overtook somebody."""
    in_line = sorted((turn.queued, turn.got) for turn in turns if turn.queued is not None)
    count = following = last_served = 0
    for turn in sorted(turns, key=lambda turn: turn.began):
        while following < len(in_line) and in_line[following][0] < turn.began:
            last_served = max(last_served, in_line[following][1])
            following += 1
        count += last_served > turn.got
    return count


def changes(turns: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """The last turn of one owner and the first of the next."""
    ordered = sorted(turns, key=lambda turn: turn.got)
    return [pair for pair in pairwise(ordered) if pair[0].waiter != pair[1].waiter]


def contest(turns: Iterable[Turn], waiters: int, since: int, stop: int) -> Figures:
    """The figures of `waiters` numbered waiters between two moments. Turns from before and after
    belong to the story (who waited, who came before) and are not counted."""
    ordered = sorted(turns, key=lambda turn: turn.got)
    inside = [turn for turn in ordered if since <= turn.got < stop]
    overlaps = sum(after.got < before.left for before, after in pairwise(ordered))
    gaps = [
        after.got - before.left for before, after in changes(ordered) if since <= after.got < stop
    ]
    counts = Counter(turn.waiter for turn in inside)
    seconds = (stop - since) / 1e9
    return {
        "changes per s": len(gaps) / seconds,
        "us per change": seconds / len(gaps) * 1e6 if gaps else math.nan,
        **latencies(gaps, "hand-over "),
        "jain": jain([counts[waiter] for waiter in range(waiters)]),
        "longest gap s": _longest_gap(inside, waiters, since, stop) / 1e9,
        "overtakes": overtakes(ordered),
        "overlaps": overlaps,
    }


def _longest_gap(inside: Iterable[Turn], waiters: int, since: int, stop: int) -> int:
    last = dict.fromkeys(range(waiters), since)
    longest = 0
    for turn in inside:
        longest = max(longest, turn.got - last[turn.waiter])
        last[turn.waiter] = turn.got
    return max(longest, stop - min(last.values()))


# -- over several runs -----------------------------------------------------------------------------


def summary(runs: Sequence[Figures]) -> Figures:
    """The median of each figure, or its worst."""
    names = dict.fromkeys(name for run in runs for name in run)
    found: Figures = {}
    for name in names:
        values = [run[name] for run in runs if not math.isnan(run.get(name, math.nan))]
        choose = max if name in WORST else statistics.median
        found[name] = choose(values) if values else math.nan
    return found


def paired(ours: Sequence[Figures], theirs: Sequence[Figures], figure: str) -> Ratio | None:
    """Ratios of runs that were neighbours in time; None when there is nothing to divide by."""
    ratios = [
        one[figure] / other[figure]
        for one, other in zip(ours, theirs, strict=True)
        if other.get(figure) and not math.isnan(one.get(figure, math.nan) / other[figure])
    ]
    if not ratios:
        return None
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))
