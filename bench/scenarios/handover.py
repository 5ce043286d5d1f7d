"""One lock, W waiters that each ask again at once: how fast, and how fairly, it changes hands.

Waiters are threads of one process, threads of four processes, or tasks of one loop. The floor is
what does it with the least: a fair lock made of bare locks, flock, `asyncio.Lock`. The ratio is of
owner changes per second, so more is better. What is a change, a hand-over, an overtake:
`bench/stats.py`. `crowd` is the same with ten thousand tasks, compared with ten: a change must not
cost more because more wait behind (it would, if anything walked the line).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from bench.crew import PLACEMENTS, SAME, SPLIT, Crew, cores, crews
from bench.entrants import Entrant
from bench.peers import PROCESSES, TASKS, THREADS
from bench.session import Case, Goal, Plan, against_all, in_turns
from bench.stats import Figures, Turn, changes, contest
from bench.work import HOLDERS

__all__ = ["compete", "processes", "tasks", "threads"]

WAITERS = (2, 10, 50, 200)
FLOOR_OF = {THREADS: "FIFO of bare locks", PROCESSES: "flock", TASKS: "asyncio.Lock"}
USUAL = {THREADS: "sleeps", PROCESSES: "works", TASKS: "yields"}
"""What a holder does; `bench/work.py` says why it matters."""
GOAL = 50
SETTLE = 50_000_000
KEY = "changes per s"


def _run(kind: str, plan: Plan) -> Iterator[Case]:
    field = plan.field
    targets = [
        target.having(count=True, **({"style": "async with"} if kind == TASKS else {}))
        for target in field.targets(kind)
    ]
    if not targets:
        return
    floor = FLOOR_OF[kind]
    peers = [peer for peer in field.peers(kind) if peer.label != floor]
    entrants = [*targets, field.floor(floor), *peers]
    with crews(entrants, plan.processes if kind == PROCESSES else 1) as everybody:
        for waiters, holder in _contests(kind, plan.quick):
            for placement in PLACEMENTS if kind != TASKS else (SAME,):
                for crew in everybody:
                    crew.place(placement)
                run = partial(
                    compete,
                    kind=kind,
                    waiters=waiters,
                    holder=holder,
                    placement=placement,
                    seconds=plan.amount(
                        0.3 if kind != PROCESSES else max(1.0, waiters / 100), 0.05
                    ),
                )
                yield Case(
                    f"handover-{kind}",
                    f"{waiters} waiters, holder {holder}",
                    placement,
                    in_turns(plan.pairs, everybody, run),
                    against_all([t.label for t in targets], [p.label for p in peers], KEY, floor),
                    [goal for target in targets for goal in goals(target, kind, waiters)],
                    {crew.entrant.label: crew.version for crew in everybody},
                )


def _contests(kind: str, quick: bool) -> Iterator[tuple[int, str]]:
    """How many wait, and what a holder does. Where goals compare with pollers: all of it."""
    for waiters in (6,) if quick else WAITERS:
        yield waiters, USUAL[kind]
        if kind == PROCESSES and waiters == GOAL:
            yield from ((waiters, holder) for holder in HOLDERS if holder != USUAL[kind])


threads = partial(_run, THREADS)
processes = partial(_run, PROCESSES)
tasks = partial(_run, TASKS)


def goals(target: Entrant, kind: str, waiters: int) -> Iterator[Goal]:
    yield Goal(target.label, "overtakes", at_most=0)
    if kind == PROCESSES and waiters == GOAL:
        yield Goal(target.label, KEY, at_least=2, against="filelock")
        yield Goal(target.label, "hand-over p99", at_most=1, against="filelock")


def compete(
    crew: Crew,
    *,
    kind: str,
    waiters: int,
    seconds: float,
    placement: str,
    holder: str = "",
    memory: bool = False,
) -> Figures:
    """One contest of this crew; `seconds` of it count, when all have come in line."""
    start = time.monotonic_ns() + int((0.03 + waiters * 0.0002) * 1e9)
    since = start + SETTLE
    stop = since + int(seconds * 1e9)
    parts = crew.shared_out(waiters)
    common = {
        "name": f"one-of-{waiters}",
        "start": start,
        "since": since,
        "stop": stop,
        "holder": holder or USUAL[kind],
        "cores": list(cores()) if placement == SPLIT and len(parts) == 1 else None,
        "memory": memory,
    }
    orders = [{"kind": kind, "order": {**common, "waiters": part}} for part in parts]
    answers = crew.ask_each("contend", orders, limit=seconds + 100)
    turns = [Turn(*turn) for answer in answers for turn in answer["turns"]]
    # Tasks know when all were in line, and count from then.
    figures = contest(turns, waiters, answers[0].get("since", since), answers[0].get("stop", stop))
    cpu = sum(answer["cpu"] for answer in answers)
    figures["CPU us per change"] = cpu * figures["us per change"] / seconds
    if answers[0]["calls"] is not None:
        asked = sum(answer["calls"] for answer in answers)
        figures["store requests per change"] = asked / max(1, len(changes(turns)))
    if memory:
        figures["bytes per waiter"] = answers[0]["bytes"] / waiters
    return figures
