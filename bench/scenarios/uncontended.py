"""Uncontended acquire and release: what a lock costs when nobody else wants it.

Floors: over memory:// and over a network one raw loopback round trip pair (the least that acquire
and release over any network need), over SQLite two bare statements, over Redis its two bare
requests, over five masters the same at all of them until a majority has answered, among file
locks flock. Turns are so short, some milliseconds, that a busy moment of the
machine strikes everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.crew import PLACEMENTS, SAME, Crew, crews, failures
from bench.entrants import Entrant
from bench.peers import TASKS, THREADS
from bench.session import Case, Comparison, Goal, Plan, against_all, alternating
from bench.stats import Figures, latencies

__all__ = ["run"]

NAME = "uncontended"
FLOOR_OF = {  # by the store, or the scheme
    "sqlite": "two SQLite statements",
    "redis": "SET and EVALSHA",
    "redlock": "majority of raw sockets",
    "zk": "create and delete",
    "zookeeper": "create and delete",
    "etcd": "txn and delete",
    "etcd-cluster": "txn and delete of three",
    "postgresql": "two UPDATEs",
    "postgres": "two UPDATEs",
    "mysql": "two UPDATEs on MariaDB",
    "mariadb": "two UPDATEs on MariaDB",
    "postgresql advisory": "bare advisory locks",
    "postgresql-advisory": "bare advisory locks",
    "mysql advisory": "bare GET_LOCK",
    "mysql-advisory": "bare GET_LOCK",
    "postgresql for-update": "bare FOR UPDATE",
    "postgresql-for-update": "bare FOR UPDATE",
    "mysql for-update": "bare FOR UPDATE on MariaDB",
    "mysql-for-update": "bare FOR UPDATE on MariaDB",
}
NETWORK = "loopback round trips"
TURN = 0.01


def run(plan: Plan) -> Iterator[Case]:
    field = plan.field
    targets = field.targets()
    peers = field.peers(THREADS, TASKS, alone=True)
    styles = [
        target.having(style, style=style) for target in targets for style in ("with", "async with")
    ]
    schemes = [target.scheme for target in targets] or field.store.schemes
    store = FLOOR_OF.get(field.store.name)
    floors = dict.fromkeys(store or FLOOR_OF.get(scheme, NETWORK) for scheme in schemes)
    entrants = [*targets, *styles, *(field.floor(name) for name in floors), *peers]
    with crews(entrants) as everybody:
        for placement in PLACEMENTS:
            for crew in everybody:
                crew.place(placement)
                crew.tried(_first)
            yield Case(
                NAME,
                "acquire, release",
                placement,
                _in_short_turns(plan, everybody),
                list(_comparisons([*targets, *styles], peers, store)),
                [goal for target in targets for goal in goals(target, placement, store)],
                {crew.entrant.label: crew.version for crew in everybody},
                failures(everybody),
            )


def goals(target: Entrant, placement: str, floor: str | None = None) -> Iterator[Goal]:
    if target.scheme == "memory" and placement == SAME:
        for style in ("", " with"):
            yield Goal(target.label + style, "p50", at_most=1.0, against=NETWORK)
    if target.scheme == "sqlite":
        yield Goal(target.label, "p50", at_most=1 / 1.5, against="filelock")
        yield Goal(target.label, "p50", at_most=3.0, against=FLOOR_OF["sqlite"])
    if target.scheme == "redis":
        limit = 2.2 if placement == SAME else 1.4
        yield Goal(target.label, "p50", at_most=limit, against=FLOOR_OF["redis"])
        if placement == SAME:
            yield Goal(target.label, "p50", at_most=1 / 2.2, against="redis-py")
        yield Goal(f"{target.label} async with", "p50", at_most=1 / 2, against="redis.asyncio")
    if target.scheme in ("postgresql", "mysql"):
        yield Goal(target.label, "p50", at_most=1.5, against=FLOOR_OF[target.scheme])
    if target.scheme in ("postgresql advisory", "mysql advisory"):
        yield Goal(target.label, "p50", at_most=2.0, against=FLOOR_OF[target.scheme])
        name = "MySQL" if target.scheme.startswith("mysql") else "PostgreSQL"
        yield Goal(target.label, "p50", at_most=1 / 3, against=f"tooz on {name}")
        if name == "PostgreSQL":
            yield Goal(target.label, "p50", at_most=1 / 3, against="pals")
    if target.scheme == "redlock":
        fenced = "fence=off" not in target.target
        limit = 4.5 if fenced else 2.5
        yield Goal(target.label, "p50", at_most=limit, against=FLOOR_OF["redlock"])
        if not fenced:
            for peer in ("redlock-ng on five", "pottery on five"):
                yield Goal(target.label, "p50", at_most=1.0, against=peer)
            yield Goal(f"{target.label} async with", "p50", at_most=1.0, against="aioredlock")
    if target.scheme == "zk":
        yield Goal(target.label, "p50", at_most=1.2, against=FLOOR_OF["zk"])
    if target.scheme == "etcd":
        yield Goal(target.label, "p50", at_most=1.2, against=floor or FLOOR_OF["etcd"])


def _comparisons(
    ours: Sequence[Entrant], peers: Sequence[Entrant], floor: str | None
) -> Iterator[Comparison]:
    """`floor` is that of the peers, if they share one."""
    for entrant in ours:
        yield Comparison(entrant.label, floor or FLOOR_OF.get(entrant.scheme, NETWORK), "p50")
    labels = [peer.label for peer in peers]
    for kind, style in ((THREADS, None), (TASKS, "async with")):
        yield from against_all(
            [entrant.label for entrant in ours if entrant.options.get("style") == style],
            [peer.label for peer in peers if kind in peer.kinds],
            "p50",
        )
    if floor:
        yield from (Comparison(label, floor, "p50") for label in labels)
    if "flock" in labels:
        for label in labels:
            if label in ("filelock", "portalocker"):
                yield Comparison(label, "flock", "p50")


def _in_short_turns(plan: Plan, everybody: Sequence[Crew]) -> dict[str, list[Figures]]:
    runs: dict[str, list[Figures]] = {crew.entrant.label: [] for crew in everybody}
    orders = alternating(everybody)

    def cycles(crew: Crew) -> list[int]:
        taken: list[int] = crew.ask("cycles", name="one", seconds=plan.amount(TURN, 0.001))[0]
        return taken

    for _ in range(plan.pairs):
        samples: dict[str, list[int]] = {label: [] for label in runs}
        for _ in range(int(plan.amount(20, 1))):
            for crew in next(orders):
                samples[crew.entrant.label] += crew.tried(cycles) or []
        for label, taken in samples.items():
            found = {"ops per s": len(taken) / sum(taken) * 1e9} if taken else {}
            runs[label].append({**latencies(taken), **found})
    return runs


def _first(crew: Crew) -> None:
    """The first ones are slow."""
    crew.ask("cycles", name="one", seconds=0.0)
