"""Fifty waiters in four processes, each takes the lock once: how long from one to the next?

In `handover` everybody asks again at once, so a lock without a line hardly ever goes to somebody
who waits, and its few changes look quick. Here the line runs empty: whoever has had the lock is
done, and the next turn is that of a waiter. First somebody else holds it until all wait, and
releases at a random moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench.crew import PLACEMENTS, Crew, crews, failures
from bench.entrants import Entrant
from bench.peers import PROCESSES
from bench.session import Case, Goal, Plan, against_all, in_turns
from bench.stats import Figures, Turn, changes, latencies, overtakes

__all__ = ["run"]

WAITERS = 50
KEY = "hand-over p50"


def run(plan: Plan) -> Iterator[Case]:
    field = plan.field
    targets, peers = field.targets(PROCESSES), field.peers(PROCESSES, everybody=plan.quick)
    if not targets and not peers:
        return
    waiters = int(plan.amount(WAITERS, 8))
    entrants = [*(target.having(count=True) for target in targets), *peers]
    with crews(entrants) as holding, crews(entrants, plan.processes) as everybody:
        holders = {crew.entrant.label: crew for crew in holding}

        def drained(crew: Crew) -> Figures:
            return _drain(crew, holders[crew.entrant.label], waiters)

        for placement in PLACEMENTS:
            for crew in (*everybody, *holding):
                crew.place(placement)
            yield Case(
                "drain",
                f"{waiters} waiters",
                placement,
                in_turns(plan.pairs, everybody, drained),
                against_all([t.label for t in targets], [p.label for p in peers], KEY),
                [goal for target in targets for goal in goals(target)],
                {crew.entrant.label: crew.version for crew in everybody},
                failures(everybody),
            )


def goals(target: Entrant) -> Iterator[Goal]:
    yield Goal(target.label, "overtakes", at_most=0)
    if target.scheme == "redis":
        yield Goal(target.label, "hand-over p99", at_most=1 / 5, against="redis-py")
    elif target.scheme in ("memory", "sqlite"):
        yield Goal(target.label, "hand-over p99", at_most=1, against="filelock")


def _drain(crew: Crew, holder: Crew, waiters: int) -> Figures:
    holder.ask("take", name="one")
    parts = crew.shared_out(waiters)
    crew.ask_each("stand", [{"name": "one", "waiters": p, "holder": "works"} for p in parts])
    time.sleep(0.1 + waiters * 0.002 + random.uniform(0, 0.05))
    [given] = holder.ask("give", name="one")
    turns = [Turn(*turn) for answer in crew.ask("stood") for turn in answer]
    first = Turn(-1, 0, None, 0, given)
    gaps = [after.got - before.left for before, after in changes([first, *turns])]
    return {
        **latencies(gaps, "hand-over "),
        "all served ms": (max(turn.left for turn in turns) - given) / 1e6,
        "overtakes": overtakes(turns),
    }
