"""How a figure is taken: in a process of its own, pinned, in turns with its floor.

Contract: absolute times on a shared machine say little, so a claim is a ratio of two things that
ran side by side. `compare` runs subject and floor in turns, changing who goes first, and gives the
median of the paired ratios with their range. `in_child` gives each measurement a fresh process:
its memory, threads and garbage are its own. Nothing here knows what is measured.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import statistics
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

__all__ = [
    "FREE",
    "SAME",
    "SPLIT",
    "Comparison",
    "Figures",
    "Goal",
    "Plan",
    "Result",
    "compare",
    "compare_latencies",
    "cores",
    "in_child",
    "jain",
    "latencies",
    "overtakes",
    "pin",
    "quantile",
    "rss",
]

T = TypeVar("T")

Figures = dict[str, float]
"""What one run measured. Times are in microseconds unless the name says otherwise."""

SAME, SPLIT, FREE = "same core", "split cores", "not pinned"
"""Where it ran: everything on one core; one side, or half of the threads, on another; anywhere."""


@dataclass(frozen=True)
class Plan:
    """How much to do. A quick run shows that everything works; its figures mean nothing."""

    pairs: int = 7
    quick: bool = False

    def amount(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Goal:
    """A promise of an issue: this figure (or "ratio") is at most so much."""

    figure: str
    at_most: float


@dataclass(frozen=True)
class Comparison:
    """Subject and floor, in turns. Figures are medians over the runs."""

    pairs: int
    ratio: float | None = None  # median of the paired ratios
    lowest: float | None = None
    highest: float | None = None
    ratio_of_medians: float | None = None
    figures: Figures = field(default_factory=dict)
    floor_figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    scenario: str
    case: str
    placement: str
    subject: str
    floor: str  # what it is compared with; empty when it stands for itself
    key: str  # the figure whose ratio is given
    measured: Comparison
    goals: tuple[Goal, ...] = ()

    def value(self, figure: str) -> float:
        if figure == "ratio":
            return math.nan if self.measured.ratio is None else self.measured.ratio
        return self.measured.figures[figure]

    def missed(self) -> list[Goal]:
        return [goal for goal in self.goals if not self.value(goal.figure) <= goal.at_most]


def compare(
    pairs: int, key: str, subject: Callable[[], Figures], floor: Callable[[], Figures]
) -> Comparison:
    """Run both in turns, so that whatever else the machine does strikes both."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for number in range(pairs):
        if number % 2:
            ours.append(subject())
            theirs.append(floor())
        else:
            theirs.append(floor())
            ours.append(subject())
    return _compared(key, ours, theirs)


def compare_latencies(
    pairs: int, chunks: int, subject: Callable[[], list[int]], floor: Callable[[], list[int]]
) -> Comparison:
    """As `compare`, for things that take microseconds: each gives some latencies in nanoseconds at
    a call, and the turns are so short that a busy moment of the machine strikes both."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for _ in range(pairs):
        samples: tuple[list[int], list[int]] = ([], [])
        for _ in range(chunks):
            samples[1].extend(floor())
            samples[0].extend(subject())
        ours.append(latencies(samples[0]))
        theirs.append(latencies(samples[1]))
    return _compared("p50", ours, theirs)


def _compared(key: str, ours: Sequence[Figures], theirs: Sequence[Figures]) -> Comparison:
    ratios = [one[key] / other[key] for one, other in zip(ours, theirs, strict=True)]
    figures, floor_figures = _medians(ours), _medians(theirs)
    return Comparison(
        len(ratios),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        figures[key] / floor_figures[key],
        figures,
        floor_figures,
    )


def _medians(runs: Sequence[Figures]) -> Figures:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def quantile(values: Sequence[float], share: float) -> float:
    """Of a sorted sequence: the smallest value that `share` of all values do not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def latencies(nanoseconds: list[int]) -> Figures:
    nanoseconds.sort()
    return {
        "p50": quantile(nanoseconds, 0.50) / 1e3,
        "p99": quantile(nanoseconds, 0.99) / 1e3,
    }


def jain(counts: Sequence[int]) -> float:
    """Jain's fairness index: 1 when all had the same, 1/n when one had everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else math.nan


def overtakes(turns: Sequence[tuple[int, int | None, int]]) -> int:
    """How often somebody got it before one who was in line when he only began to ask.

    `turns`, in the order of the grants: when it began to ask, when it was in line (None: it never
    had to), when it was granted.
    """
    queued = sorted((q, granted) for _, q, granted in turns if q is not None)
    count = 0
    waiting: list[tuple[int, int]] = []
    following = 0
    for began, _, granted in turns:
        while following < len(queued) and queued[following][0] < granted:
            waiting.append(queued[following])
            following += 1
        waiting = [turn for turn in waiting if turn[1] >= granted]
        count += sum(q < began and theirs > granted for q, theirs in waiting)
    return count


# -- where, and in which process -------------------------------------------------------------------


def cores() -> tuple[int, int]:
    """Two cores to pin to; the same one twice on a machine that has only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def pin(*chosen: int) -> None:
    """This thread, and the threads and processes it starts."""
    os.sched_setaffinity(0, set(chosen))


def rss() -> int:
    """Bytes of memory this process has now."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_child(function: Callable[..., T], *arguments: Any) -> T:
    """Run it in a forked child, and bring back what it returned or why it failed."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(there, function, arguments))
    child.start()
    there.close()
    try:
        answer, failure = here.recv()
    except EOFError:
        answer, failure = None, "the process ended without an answer"
    finally:
        here.close()
        child.join()
    if failure:
        raise RuntimeError(f"{function.__module__}.{function.__qualname__}: {failure}")
    result: T = answer
    return result


def _answer(there: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        there.send((function(*arguments), ""))
    except BaseException:
        there.send((None, traceback.format_exc()))
