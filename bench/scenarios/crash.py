"""The holder is killed with -9: how long until the next waiter has the lock?

Three waiters stand in line in a process of their own; the holder, in another, has a lease of thirty
seconds and dies at a random moment. Measured from just before the signal is sent until the first
waiter's acquire has returned. Everybody is killed in turns, the holder on another core than who
waits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench.crew import SPLIT, Crew, cores, crews
from bench.entrants import Entrant
from bench.peers import PROCESSES
from bench.session import Case, Goal, Plan, against_all, alternating
from bench.stats import Figures, Turn, quantile

__all__ = ["run"]

KILLS, TTL, WAITERS = 50, 30.0, 3
KEY = "p50 ms"


def run(plan: Plan) -> Iterator[Case]:
    targets = [target.having(ttl=TTL) for target in plan.field.targets(PROCESSES)]
    peers = plan.field.peers(PROCESSES)
    if not targets and not peers:
        return
    kills = int(plan.amount(KILLS, 2))
    with crews([*targets, *peers]) as everybody:
        for crew in everybody:
            crew.place(SPLIT)
        taken: dict[str, list[float]] = {crew.entrant.label: [] for crew in everybody}
        for _, order in zip(range(kills), alternating(everybody), strict=False):
            for crew in order:
                taken[crew.entrant.label].append(_kill(crew, crew.entrant))
        yield Case(
            "crash",
            f"{kills} kills",
            SPLIT,
            {label: [_figures(milliseconds)] for label, milliseconds in taken.items()},
            against_all([t.label for t in targets], [p.label for p in peers], KEY),
            [Goal(target.label, "p99 ms", at_most=250) for target in targets],
            {crew.entrant.label: crew.version for crew in everybody},
        )


def _figures(milliseconds: list[float]) -> Figures:
    milliseconds.sort()
    return {
        "p50 ms": quantile(milliseconds, 0.5),
        "p99 ms": quantile(milliseconds, 0.99),
        "max ms": milliseconds[-1],
    }


def _kill(waiting: Crew, entrant: Entrant) -> float:
    """Milliseconds from one kill to the next holder."""
    holder = Crew(entrant)
    try:
        first, second = cores()
        holder.ask("pin", cores=[second], other=first)
        holder.ask("take", name="one")
        waiting.ask("stand", name="one", waiters=list(range(WAITERS)))
        time.sleep(random.uniform(0.1, 0.2))
        killed = time.monotonic_ns()
        holder.workers[0].kill()
        [turns] = waiting.ask("stood", limit=TTL + 30)
        return float(min(Turn(*turn).got for turn in turns) - killed) / 1e6
    finally:
        holder.end()
