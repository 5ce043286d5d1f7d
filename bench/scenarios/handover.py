"""One lock, W waiters that each ask again at once: how fast, and how fairly, it changes hands.

Waiters are threads of one process, threads of four processes, or tasks of one loop. The floor is
what does it with the least: a fair lock made of bare locks, flock, `asyncio.Lock`; over a server
there is none. The ratio is of owner changes per second, so more is better. A server is asked what
it had to do (`bench/meter.py`). Pollers that hardly differ from one another take part only where
fifty wait. What is a change, a hand-over, an overtake:
`bench/stats.py`. `crowd` is the same with ten thousand tasks, compared with ten: a change must not
cost more because more wait behind (it would, if anything walked the line).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

from bench.crew import PLACEMENTS, SAME, SPLIT, Crew, cores, crews, failures
from bench.entrants import Entrant
from bench.meter import Reading, between
from bench.peers import PROCESSES, TASKS, THREADS
from bench.session import Case, Goal, Plan, against_all, in_turns
from bench.stats import Figures, Turn, changes, contest
from bench.work import HOLDERS

__all__ = ["asked", "compete", "processes", "tasks", "threads"]

USUAL = {THREADS: "sleeps", PROCESSES: "works", TASKS: "yields"}
"""What a holder does; `bench/work.py` says why it matters."""
GOAL = 50
SETTLE, ARRIVAL = 50_000_000, 5_000_000
"""Nanoseconds until all have come in line; the second for each of them, where they ask a server."""
KEY = "changes per s"
FLOORS_TO_KEEP = {
    "postgresql advisory": "bare advisory locks",
    "mysql advisory": "bare GET_LOCK",
}
"""What waits in the database itself hands over as fast as that does, nearly."""


def _run(kind: str, plan: Plan) -> Iterator[Case]:
    field = plan.field
    targets = [
        target.having(count=True, **({"style": "async with"} if kind == TASKS else {}))
        for target in field.targets(kind)
    ]
    floor = field.store.floors.get(kind, "")
    peers = [peer for peer in field.peers(kind) if peer.label != floor]
    if not targets and (floor or not peers):
        return
    floors = [field.floor(floor)] if floor else []
    served = field.store.served
    with crews([*targets, *floors, *peers], plan.processes if kind == PROCESSES else 1) as crowd:
        for waiters, holder in _contests(kind, plan):
            full = waiters == GOAL or plan.quick
            everybody = [crew for crew in crowd if full or crew.entrant.everywhere]
            rivals = [peer.label for peer in peers if full or peer.everywhere]
            for placement in PLACEMENTS if kind != TASKS or served else (SAME,):
                for crew in crowd:
                    crew.place(placement)
                run = partial(
                    compete,
                    kind=kind,
                    waiters=waiters,
                    holder=holder,
                    placement=placement,
                    seconds=plan.amount(_seconds(kind, waiters, served), 0.05),
                )
                yield Case(
                    f"handover-{kind}",
                    f"{waiters} waiters, holder {holder}",
                    placement,
                    in_turns(plan.pairs, everybody, run),
                    against_all([t.label for t in targets], rivals, KEY, floor),
                    [goal for target in targets for goal in goals(target, kind, waiters, floor)],
                    {crew.entrant.label: crew.version for crew in everybody},
                    failures(everybody),
                )


def _seconds(kind: str, waiters: int, served: bool) -> float:
    """How long a contest is. Of pollers over a network two waiters have a few turns in a second."""
    if kind != PROCESSES and not served:
        return 0.3
    return 0.75 if waiters == 2 and served else max(0.5, waiters / 250)


def _contests(kind: str, plan: Plan) -> Iterator[tuple[int, str]]:
    """How many wait, and what a holder does. Where goals compare with pollers: all of it."""
    store = plan.field.store
    for waiters in (6,) if plan.quick else store.waiters:
        yield waiters, USUAL[kind]
        if kind == PROCESSES and waiters == GOAL and not store.served:
            yield from ((waiters, holder) for holder in HOLDERS if holder != USUAL[kind])


threads = partial(_run, THREADS)
processes = partial(_run, PROCESSES)
tasks = partial(_run, TASKS)


def goals(target: Entrant, kind: str, waiters: int, floor: str = "") -> Iterator[Goal]:
    if " " in target.scheme:  # it lives in a connection: who is first, the database decides
        if target.scheme in FLOORS_TO_KEEP and kind == PROCESSES and waiters == GOAL:
            yield Goal(target.label, KEY, at_least=0.7, against=FLOORS_TO_KEEP[target.scheme])
        return
    yield Goal(target.label, "overtakes", at_most=0)
    if target.scheme == "redis":
        rival = "redis.asyncio" if kind == TASKS else "redis-py"
        yield Goal(target.label, KEY, at_least=100 if waiters == 2 else 10, against=rival)
        yield Goal(target.label, "hand-over p99", at_most=1 / 5, against=rival)
        if kind != TASKS:
            yield Goal(target.label, KEY, at_least=2, against="python-redis-lock")
        yield Goal(target.label, "store requests per change", at_most=2.5)
        yield Goal(target.label, "jain", at_least=0.99)
    elif target.scheme == "postgresql":
        # However many wait: two to stand in line, two to give it back, one to make it one's own,
        # and heartbeats, and looks of who is told of a shorter lease.
        yield Goal(target.label, "store requests per change", at_most=8)
        if floor:
            yield Goal(target.label, "hand-over p50", at_most=3, against=floor)
    elif target.scheme == "mysql":
        if "named-lock" in target.target:
            yield Goal(target.label, "hand-over p50", at_most=5000)
    elif target.scheme == "zk":
        yield Goal(target.label, "store requests per change", at_most=6)  # however many wait
        if kind != TASKS:
            yield Goal(target.label, "hand-over p50", at_most=1.3, against="bare recipe")
    elif target.scheme == "etcd":
        # To stand in line, to see that this was not too late, to look when called, to give it back;
        # however many wait.
        yield Goal(target.label, "store requests per change", at_most=4.2)
        if floor:
            yield Goal(target.label, "hand-over p50", at_most=1.3, against=floor)
    elif kind == PROCESSES and waiters == GOAL:
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
    parts, name = crew.shared_out(waiters), f"one-of-{waiters}"
    if kind != TASKS:
        crew.ask_each("make", [{"name": name, "waiters": part} for part in parts])
    start = time.monotonic_ns() + int((0.03 + waiters * 0.0002) * 1e9)
    served = crew.entrant.server is not None
    since = start + SETTLE + served * waiters * ARRIVAL
    stop = since + int(seconds * 1e9)
    metered = crew.entrant.server is not None and crew.entrant.server.books is not None
    common = {
        "name": name,
        "start": start,
        "since": since,
        "stop": stop,
        "holder": holder or USUAL[kind],
        # Over a server its clients are on the other core, all of them.
        "cores": list(cores()) if placement == SPLIT and len(parts) == 1 and not served else None,
        "memory": memory,
    }
    orders = [
        {"kind": kind, "order": {**common, "waiters": part, "metered": metered and number == 0}}
        for number, part in enumerate(parts)
    ]
    answers = crew.ask_each("contend", orders, limit=seconds + 100)
    turns = [Turn(*turn) for answer in answers for turn in answer["turns"]]
    # Tasks know when all were in line, and count from then.
    figures = contest(turns, waiters, answers[0].get("since", since), answers[0].get("stop", stop))
    cpu = sum(answer["cpu"] for answer in answers)
    figures["CPU us per change"] = cpu * figures["us per change"] / seconds
    if metered:
        figures |= asked(turns, *(Reading(*said) for said in answers[0]["readings"]))
    elif answers[0]["calls"] is not None:
        calls = sum(answer["calls"] for answer in answers)
        figures["store requests per change"] = calls / max(1, len(changes(turns)))
    if memory:
        figures["bytes per waiter"] = answers[0]["bytes"] / waiters
    return figures


def asked(turns: list[Turn], before: Reading, after: Reading) -> Figures:
    """By the server's books, for the changes between the two moments at which they were read."""
    used = between(before, after)
    number = sum(before.moment <= turn.got < after.moment for _, turn in changes(turns))
    return {
        "store requests per change": used.requests / number if number else math.nan,
        "store commands per change": used.commands / number if number else math.nan,
        "store requests per s": used.requests / used.seconds,
        "store bytes per change": used.sent / number if number else math.nan,
    }
