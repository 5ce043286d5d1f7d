"""Two hundred waiters in four processes merely wait: what does that cost the machine?

Somebody else holds the lock the whole time; the CPU seconds of the waiting processes are counted
from when all stand in line, and what a server is asked meanwhile. Nothing to wait for means nothing
to do: whoever polls shows here.
Seconds of CPU do not wobble with placement, so everybody runs once, spread over the cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.crew import SPLIT, Crew
from bench.meter import Reading, between
from bench.peers import PROCESSES
from bench.session import Case, Goal, Plan, against_all
from bench.stats import Figures, Turn

__all__ = ["run"]

WAITERS = 200
KEY = "CPU % of a core"
LIMIT = 180.0


def run(plan: Plan) -> Iterator[Case]:
    field, served = plan.field, plan.field.store.served
    targets = field.targets(PROCESSES)
    peers = field.peers(PROCESSES, everybody=plan.quick)
    if not targets and not peers:
        return
    seconds = plan.amount(8, 0.2)
    waiters = int(plan.amount(WAITERS, 8))
    runs: dict[str, list[Figures]] = {}
    versions: dict[str, str] = {}
    for entrant in [*targets, *peers]:
        with Crew(entrant) as holder, Crew(entrant, plan.processes) as crew:
            crew.place(SPLIT)
            runs[entrant.label] = [_wait(crew, holder, waiters, seconds, plan.amount(2, 0.2))]
            versions[entrant.label] = crew.version
    yield Case(
        "waiting",
        f"{waiters} waiters in {plan.processes} processes",
        SPLIT,
        runs,
        against_all([t.label for t in targets], [p.label for p in peers], KEY),
        [] if plan.quick or served else [Goal(t.label, KEY, at_most=1) for t in targets],
        versions,
    )


def _wait(crew: Crew, holder: Crew, waiters: int, seconds: float, settle: float) -> Figures:
    holder.ask("take", name="one")
    crew.ask_each("stand", [{"name": "one", "waiters": p} for p in crew.shared_out(waiters)])
    time.sleep(settle)
    [book] = holder.ask("meter")
    before, began = sum(crew.ask("cpu")), time.monotonic()
    time.sleep(seconds)
    after, took = sum(crew.ask("cpu")), time.monotonic() - began
    [later] = holder.ask("meter")
    [given] = holder.ask("give", name="one")
    got = [Turn(*turn).got for turns in crew.ask("stood", limit=LIMIT) for turn in turns]
    figures: Figures = {}
    if book is not None:
        used = between(Reading(*book), Reading(*later))
        figures["store requests per s and waiter"] = used.requests / used.seconds / waiters
    return {
        "CPU s": after - before,
        KEY: (after - before) / took * 100,
        "seconds": took,
        "all served after s": (max(got) - given) / 1e9,
        **figures,
    }
