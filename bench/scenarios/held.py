"""Many leases held by one client and renewed: threads, requests, memory and CPU for each of them.

What is compared is one lease among many with one lease among a thousand: the cost of a lease must
not depend on how many others there are. Peers hold the smallest number; they have nothing to
renew. Each run is a process of its own; counts and memory do not wobble, so each is run once.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.crew import Crew
from bench.entrants import Entrant
from bench.peers import THREADS
from bench.session import Case, Comparison, Goal, Plan, against_all
from bench.stats import Figures

__all__ = ["run"]

TTL, RENEW, ROUNDS = 60.0, 5.0, 2
SIZES = (1_000, 10_000, 100_000)
SERVED = (1_000, 10_000)  # each costs a round trip at least
QUICK = (100, 200)
KEY = "renewal CPU us per lease"
LIMIT = 600.0

LIMITS: dict[str, float] = {
    "lost": 0,
    "left over": 0,
    "keeper threads": 1,
    "renew calls per round and 1000 leases": 3,
    "bytes per lease": 3 * 1024,
}
LIMITS_OF: dict[str, dict[str, float]] = {
    "redis": {
        "renew calls per round and 1000 leases": 1,
        "connections": 2,  # one asks for locks, one renews them
    },
    # The rest of a statement is a sweep, and the time limit of the session, now and then.
    "postgresql": {"statements per round and 1000 leases": 1.5, "connections": 2},
    "mysql": {"statements per round and 1000 leases": 1.5, "connections": 2},
    # Each call is a keep-alive and a list of keys, for all of them.
    "etcd": {"renew calls per round and 1000 leases": 1.5, "store requests per s": 1.0},
}
UNBATCHED = ("lost", "left over")
"""A few leases fit badly into whole calls: the rest is claimed for thousands of them."""


def run(plan: Plan) -> Iterator[Case]:
    ttl, renew = (5.0, 0.1) if plan.quick else (TTL, RENEW)
    sizes = QUICK if plan.quick else SERVED if plan.field.store.served else SIZES
    runs: dict[str, list[Figures]] = {}
    versions: dict[str, str] = {}
    others: list[str] = []
    for peer in plan.field.peers(THREADS):
        others.append(f"{peer.label}, {sizes[0]} locks")
        figures, versions[peer.label] = _hold(peer, sizes[0])
        runs[others[-1]] = [figures]
    comparisons: list[Comparison] = []
    goals: list[Goal] = []
    for target in plan.field.targets(THREADS):
        ours = target.having(count=True, ttl=ttl, renew=renew)
        fewest = f"{target.label}, {sizes[0]} leases"
        for size in sizes:
            label = f"{target.label}, {size} leases"
            figures, versions[target.label] = _hold(ours, size)
            runs[label] = [figures]
            if label != fewest:
                comparisons.append(Comparison(label, fewest, KEY))
            limits = LIMITS | LIMITS_OF.get(target.scheme, {})
            if "named-lock" in target.target:
                limits["connections"] = 3  # one has the bells
            goals += [
                Goal(label, figure, at_most=limit)
                for figure, limit in limits.items()
                if size >= 1000 or figure in UNBATCHED
            ]
        comparisons += against_all([fewest], others, "bytes per lease")
    if not runs:
        return
    case = f"{' / '.join(map(str, sizes))} leases"
    yield Case("held", case, "not pinned", runs, comparisons, goals, versions)


def _hold(entrant: Entrant, size: int) -> tuple[Figures, str]:
    found: Figures = {}
    for trace in (True, False):
        # Tracing is slow, and what it counts does not depend on the number.
        number = min(size, 10_000) if trace else size
        with Crew(entrant) as crew:
            found |= crew.ask("hold", number=number, rounds=ROUNDS, trace=trace, limit=LIMIT)[0]
            version = crew.version
    return found, version
