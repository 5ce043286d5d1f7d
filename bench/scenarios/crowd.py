"""Ten thousand tasks wait for one lock: memory for each, and whether a hand-over costs more.
(In ZooKeeper a thousand, each of whom is sent the whole line, so more waiters do cost more.)

The floor is the same lock with ten waiters: a change of owner must not cost more because more wait
behind (it would, if anything walked the line). `asyncio.Lock` runs beside it, in the same manner,
to show what the machine itself makes of ten thousand tasks (garbage collection, caches).
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.crew import SAME, Crew
from bench.peers import TASKS
from bench.scenarios.handover import compete
from bench.session import Case, Comparison, Goal, Plan
from bench.stats import Figures

__all__ = ["run"]

KEY = "us per change"
FEW = 10


def run(plan: Plan) -> Iterator[Case]:
    many = int(plan.amount(plan.field.store.crowd, 100))
    # Ten thousand requests at once: the last of them may wait longer than the usual five seconds.
    patient = {"request_timeout": 60}
    ours = [
        target.having(style="async with", count=True, client=patient)
        for target in plan.field.targets(TASKS)
    ]
    floor = plan.field.store.floors.get(TASKS)
    for entrant in [*ours, *([plan.field.floor(floor)] if floor else [])]:
        crowd, few = f"{entrant.label}, {many} tasks", f"{entrant.label}, {FEW} tasks"
        with Crew(entrant) as crew:
            runs: dict[str, list[Figures]] = {crowd: [], few: []}
            for number in range(plan.pairs):
                for label in (crowd, few) if number % 2 else (few, crowd):
                    waiters = many if label == crowd else FEW
                    runs[label].append(_compete(plan, crew, waiters))
            version = crew.version
        with Crew(entrant) as fresh:  # memory is counted where there was none of it before
            memory = _compete(plan, fresh, many, memory=True)["bytes per waiter"]
        for figures in runs[crowd]:
            figures["bytes per waiter"] = memory
        yield Case(
            "crowd",
            f"{many} tasks",
            SAME,
            runs,
            [Comparison(crowd, few, KEY)],
            list(goals(entrant.scheme, crowd, few)),
            {entrant.label: version},
        )


def goals(scheme: str, crowd: str, few: str) -> Iterator[Goal]:
    if scheme == "zk":
        yield Goal(crowd, "overtakes", at_most=0)
        yield Goal(crowd, "store requests per change", at_most=6)
    elif scheme:
        yield Goal(crowd, KEY, at_most=2.0, against=few)


def _compete(plan: Plan, crew: Crew, waiters: int, *, memory: bool = False) -> Figures:
    crew.place(SAME)
    return compete(
        crew,
        kind=TASKS,
        waiters=waiters,
        seconds=plan.amount(0.7, 0.05),
        placement=SAME,
        memory=memory,
    )
