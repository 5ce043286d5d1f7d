"""Which schedules to try: at random from a seed, or systematically in order.

Contract: every schedule has a name, and `replay(name)` runs it again, exactly: "r<number>" is
random, seeded by the number; "s<case>:<place>=<way>,..." is systematic, and says where it leaves
the default course.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.types import Mode
from tests.explorer.history import Report
from tests.explorer.scenario import Plan, run

CASES: dict[str, Plan] = {
    "hand-over": Plan(hosts=2, workers=1, rounds=1, hold_for=0.5, ttl=1000.0),
    "timeout": Plan(hosts=2, workers=1, rounds=1, hold_for=0.5, timeouts=(-1.0, 0.3)),
    "cancel": Plan(hosts=2, workers=1, rounds=1, faults=("cancel",), budget=1, hold_for=0.5),
    "lost-reply": Plan(hosts=2, workers=1, rounds=1, faults=("lose_reply",), budget=1),
    "lost-request": Plan(hosts=2, workers=1, rounds=1, faults=("lose_request",), budget=1),
    "crash": Plan(hosts=2, workers=1, rounds=1, faults=("crash",), budget=1),
    "pause": Plan(hosts=2, workers=1, rounds=1, faults=("pause",), budget=1, renew=False),
    "readers": Plan(
        hosts=3, workers=1, rounds=1, modes=(Mode.SHARED, Mode.EXCLUSIVE), hold_for=0.5
    ),
}
"""Small cases that are searched in order: every single deviation, then every pair."""


@dataclass(slots=True)
class Random:
    """Choices drawn from a seed."""

    rng: random.Random

    def choose(self, width: int) -> int:
        return self.rng.randrange(width)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability


class Deviating:
    """A default course, left at a few given places; remembers which places there were.

    The default takes the last of the ways to go on, and nothing goes wrong. One deviation is one
    reordering, one fault or one delay; two find what needs two.
    """

    def __init__(self, deviations: dict[int, int]) -> None:
        self.deviations = deviations
        self.widths: list[int] = []

    def choose(self, width: int) -> int:
        place = len(self.widths)
        self.widths.append(width)
        return min(self.deviations.get(place, width - 1), width - 1)

    def chance(self, probability: float) -> bool:
        return self.choose(2) == 0


def random_schedule(number: int, trace: bool = False) -> Report:
    rng = random.Random(number)
    return run(Random(rng), Plan.drawn(rng), trace)


def systematic(case: str, limit: int) -> Iterator[tuple[str, Report]]:
    """The default course, then all courses with one deviation, then with two, and so on, up to
    `limit` schedules."""
    waiting: deque[dict[int, int]] = deque([{}])
    for _ in range(limit):
        if not waiting:
            return
        deviations = waiting.popleft()
        choices = Deviating(deviations)
        yield schedule_name(case, deviations), run(choices, CASES[case])
        for place in range(max(deviations, default=-1) + 1, len(choices.widths)):
            for way in range(choices.widths[place] - 1):
                if len(waiting) < limit:
                    waiting.append({**deviations, place: way})


def schedule_name(case: str, deviations: dict[int, int]) -> str:
    return f"s{case}:{','.join(f'{place}={way}' for place, way in deviations.items())}"


def replay(name: str, trace: bool = True) -> Report:
    """The schedule of that name again, exactly."""
    if name.startswith("r"):
        return random_schedule(int(name[1:]), trace)
    case, _, rest = name[1:].partition(":")
    pairs = [pair.split("=") for pair in rest.split(",") if pair]
    return run(Deviating({int(place): int(way) for place, way in pairs}), CASES[case], trace)
