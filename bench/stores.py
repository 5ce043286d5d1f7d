"""The stores that are measured, each with its own peers: one field of entrants for every store.

Contract: a peer is compared with holdfast over the store that it uses itself, or the one that would
replace it; a lock in Redis says nothing about one in a file. Every scenario runs once for each
store, and its results are stored under that store's name. A `{placeholder}` in a target is filled
by `bench/entrants.py`. Adding a store is one entry here, a floor and peers in `bench/peers/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.peers import PROCESSES, TASKS, THREADS

__all__ = ["EMBEDDED", "REDIS", "REDLOCK", "STORES", "ZOOKEEPER", "Store", "store_of"]


@dataclass(frozen=True)
class Store:
    name: str
    schemes: tuple[str, ...]
    targets: tuple[str, ...]  # measured by default, if this version has them
    floors: dict[str, str] = field(default_factory=dict)  # of hand-over, by kind of waiters
    without: tuple[str, ...] = ()  # scenarios that say nothing here
    served: bool = False  # by a process of its own, which has a core too

    def title(self, scenario: str) -> str:
        """What its results are called."""
        return scenario if self is EMBEDDED else f"{self.name}-{scenario}"


EMBEDDED = Store(
    "embedded",
    ("memory", "sqlite"),
    ("memory://bench", "sqlite:///{folder}/holdfast.db"),
    {THREADS: "FIFO of bare locks", PROCESSES: "flock", TASKS: "asyncio.Lock"},
    without=("away",),
)
REDIS = Store(
    "redis",
    ("redis",),
    ("redis://{redis}/0",),
    # After a kill everybody waits for the ttl: 26 s of it, fifty times, show nothing.
    without=("crash", "away"),
    served=True,
)
ZOOKEEPER = Store(
    "zookeeper",
    ("zk",),
    ("zk://{zookeeper}/bench",),
    {THREADS: "bare recipe", PROCESSES: "bare recipe"},
    without=("crash", "away"),  # everybody waits for the session's end
    served=True,
)

REDLOCK = Store(
    "redlock",
    ("redlock",),
    (
        "redlock://{redis-masters}/?quarantine=off&fence=off",
        "redlock://{redis-masters}/?quarantine=off",
    ),
    # Waiters stand in no line, here as with every peer: what is measured is the votes.
    without=(
        "abreast", "handover-threads", "handover-processes", "handover-tasks", "drain", "crowd",
        "waiting", "crash", "held",
    ),
    served=True,
)  # fmt: skip

STORES: dict[str, Store] = {store.name: store for store in (EMBEDDED, REDIS, REDLOCK, ZOOKEEPER)}


def store_of(scheme: str) -> Store:
    """A backend that a module registered is measured beside what needs no server."""
    return next((store for store in STORES.values() if scheme in store.schemes), EMBEDDED)
