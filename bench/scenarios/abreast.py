"""Tasks abreast: 200 tasks of one process, each with a lock that nobody else wants: how many pairs?

What a service does that serves many requests at once. Nobody waits for a lock, so what is compared
is how much a loop can ask of its store: pairs of acquire and release per second, of all tasks
together. With one task: `uncontended`, `async with`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.crew import PLACEMENTS, SAME, Crew, crews
from bench.peers import TASKS
from bench.session import Case, Goal, Plan, against_all, in_turns
from bench.stats import Figures, latencies

__all__ = ["run"]

KEY = "ops per s"
MANY = 200


def run(plan: Plan) -> Iterator[Case]:
    field = plan.field
    targets = [target.having(style="async with") for target in field.targets(TASKS)]
    peers = field.peers(TASKS)
    if not targets and not peers:
        return
    many = int(plan.amount(MANY, 10))
    with crews([*targets, *peers]) as everybody:
        for placement in PLACEMENTS if field.store.served else (SAME,):
            for crew in everybody:
                crew.place(placement)
            yield Case(
                "abreast",
                f"{many} tasks",
                placement,
                in_turns(
                    plan.pairs,
                    everybody,
                    partial(_abreast, tasks=many, seconds=plan.amount(0.5, 0.02)),
                ),
                against_all([t.label for t in targets], [p.label for p in peers], KEY),
                [
                    Goal(target.label, KEY, at_least=4, against="redis.asyncio")
                    for target in targets
                    if target.scheme == "redis"
                ],
                {crew.entrant.label: crew.version for crew in everybody},
            )


def _abreast(crew: Crew, *, tasks: int, seconds: float) -> Figures:
    [answer] = crew.ask("abreast", tasks=tasks, seconds=seconds)
    taken = answer["taken"]
    return {**latencies(taken), KEY: len(taken) / answer["nanoseconds"] * 1e9}
