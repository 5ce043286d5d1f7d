"""How figures are taken and compared: in turns, paired, with goals.

Contract: absolute times on a shared machine say little, so a claim is a ratio of two things that
ran side by side. `in_turns` runs all entrants once in each repeat, in alternating order, so that
whatever else the machine does strikes all of them; ratios are of runs of the same repeat, and their
median and range are given. Nothing here knows what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.crew import Crew
from bench.entrants import Field
from bench.stats import Figures, Ratio, paired, summary

__all__ = ["Case", "Goal", "Plan", "alternating", "in_turns"]

HIGHER_IS_BETTER = frozenset({"changes per s", "ops per s", "jain"})


@dataclass(frozen=True)
class Plan:
    """Who takes part, and how much to do. A quick run shows that everything works; its figures
    mean nothing."""

    field: Field
    pairs: int = 5
    quick: bool = False

    @property
    def processes(self) -> int:
        """Over how many processes waiters are spread."""
        return 2 if self.quick else 4

    def amount(self, full: float, quick: float) -> float:
        return quick if self.quick else full


@dataclass(frozen=True)
class Goal:
    """A promise of an issue: of `subject`, this figure, or its ratio to that of `against`."""

    subject: str
    figure: str
    at_most: float | None = None
    at_least: float | None = None
    against: str = ""

    def __str__(self) -> str:
        if self.at_most is not None:
            limit = f"at most {round(self.at_most, 3):g}"
        else:
            limit = f"at least {self.at_least:g}"
        return f"{self.figure} {limit}" + (f" x {self.against}" if self.against else "")

    def met(self, value: float) -> bool:
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    def missed_by(self, value: float) -> float | None:
        """How much too large or too small it is, as a part of the goal; None: that says nothing."""
        if self.at_most is not None:
            return value / self.at_most - 1 if self.at_most else None
        return 1 - value / self.at_least if self.at_least else None


@dataclass(frozen=True)
class Comparison:
    """One ratio of the table: a figure of the subject, divided by that of another."""

    subject: str
    against: str
    figure: str

    @property
    def higher_is_better(self) -> bool:
        return self.figure in HIGHER_IS_BETTER


@dataclass(frozen=True)
class Case:
    """One run of one scenario's case: the figures of everybody, repeat by repeat."""

    scenario: str
    case: str
    placement: str
    runs: dict[str, list[Figures]]
    comparisons: Sequence[Comparison] = ()
    goals: Sequence[Goal] = ()
    versions: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # peers, and why

    def figures(self) -> dict[str, Figures]:
        return {label: summary(runs) for label, runs in self.runs.items()}

    def ratio(self, subject: str, against: str, figure: str) -> Ratio | None:
        if subject not in self.runs or against not in self.runs:
            return None
        return paired(self.runs[subject], self.runs[against], figure)

    def value(self, goal: Goal) -> float | None:
        """What the goal is about; None when it was not measured, as its peer did not take part."""
        if goal.against:
            ratio = self.ratio(goal.subject, goal.against, goal.figure)
            return None if ratio is None else ratio.median
        return self.figures().get(goal.subject, {}).get(goal.figure)


def against_all(
    subjects: Sequence[str], others: Sequence[str], figure: str, floor: str = ""
) -> list[Comparison]:
    """Each subject with everybody else; and everybody else with the floor."""
    found = [
        Comparison(subject, other, figure)
        for subject in subjects
        for other in dict.fromkeys([*([floor] if floor else []), *others])
    ]
    if floor:
        found += [Comparison(other, floor, figure) for other in others if other != floor]
    return found


def alternating(crews: Sequence[Crew]) -> Iterator[list[Crew]]:
    """For ever: forwards, backwards, forwards, ..."""
    while True:
        yield list(crews)
        yield list(reversed(crews))


def in_turns(
    pairs: int, crews: Sequence[Crew], run: Callable[[Crew], Figures]
) -> dict[str, list[Figures]]:
    runs: dict[str, list[Figures]] = {crew.entrant.label: [] for crew in crews}
    for _, order in zip(range(pairs), alternating(crews), strict=False):
        for crew in order:
            runs[crew.entrant.label].append(crew.tried(run) or {})
    return runs
