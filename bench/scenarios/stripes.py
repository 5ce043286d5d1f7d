"""One hot lock in segments: how many more holds a second with two, four, eight, sixteen stripes?

Sixteen tasks of one process each take any stripe, hold it for a millisecond (a sale), and ask anew.
With one stripe they stand in one line, and there are at most a thousand holds a second; with more,
as many at a time as there are stripes, until the store or the loop has no more to give. The floor
is one stripe, through the same `any()`.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.crew import SAME, Crew
from bench.peers import TASKS
from bench.session import Case, Comparison, Plan
from bench.stats import Figures

__all__ = ["run"]

KEY = "ops per s"
COUNTS = (1, 2, 4, 8, 16)
BUYERS = 16
HOLD = 0.001


def run(plan: Plan) -> Iterator[Case]:
    for entrant in [target.having(style="async with") for target in plan.field.targets(TASKS)]:
        labels = {count: f"{entrant.label}, {count} stripes" for count in COUNTS}
        runs: dict[str, list[Figures]] = {label: [] for label in labels.values()}
        with Crew(entrant) as crew:
            crew.place(SAME)
            for number in range(plan.pairs):
                for count in COUNTS if number % 2 else reversed(COUNTS):
                    runs[labels[count]].append(_sell(crew, count, plan.amount(1.0, 0.05)))
            version = crew.version
        yield Case(
            "stripes",
            f"{BUYERS} tasks, each hold {1000 * HOLD:g} ms",
            SAME,
            runs,
            [Comparison(labels[count], labels[1], KEY) for count in COUNTS[1:]],
            [],
            {entrant.label: version},
        )


def _sell(crew: Crew, count: int, seconds: float) -> Figures:
    [sold] = crew.ask("stripes", count=count, tasks=BUYERS, hold=HOLD, seconds=seconds)
    return {KEY: sold / seconds}
