"""The stores that are measured, each with its own peers: one field of entrants for every store.

Contract: a peer is compared with holdfast over the store that it uses itself, or the one that would
replace it; a lock in Redis says nothing about one in a file. Every scenario runs once for each
store, and its results are stored under that store's name. A `{placeholder}` in a target is filled
by `bench/entrants.py`. Adding a store is one entry here, a floor and peers in `bench/peers/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.peers import PROCESSES, TASKS, THREADS

__all__ = [
    "EMBEDDED",
    "ETCD",
    "REDIS",
    "REDLOCK",
    "STORES",
    "THREE",
    "ZOOKEEPER",
    "Store",
    "store_of",
]


@dataclass(frozen=True)
class Store:
    name: str
    schemes: tuple[str, ...]
    targets: tuple[str, ...]  # measured by default, if this version has them
    floors: dict[str, str] = field(default_factory=dict)  # of hand-over, by kind of waiters
    without: tuple[str, ...] = ()  # scenarios that say nothing here
    served: bool = False  # by a process of its own, which has a core too
    crowd: int = 10_000  # tasks that wait for one lock

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
ZOOKEEPER = Store(
    "zookeeper",
    ("zk",),
    ("zk://{zookeeper}/bench",),
    {THREADS: "bare recipe", PROCESSES: "bare recipe"},
    without=("crash", "away"),  # everybody waits for the session's end
    served=True,
    crowd=1_000,  # each lists the whole line
)

ETCD = Store(
    "etcd",
    ("etcd",),
    ("etcd://{etcd}/bench",),
    {THREADS: "bare mutex", PROCESSES: "bare mutex"},
    # Each write is a flush to its disk: of ten thousand tasks nothing is seen but that.
    without=("crash", "crowd", "away"),
    served=True,
)
THREE = Store(
    "etcd-cluster",
    (),
    ("etcd://{etcd-cluster}/bench",),
    {THREADS: "bare mutex of three", PROCESSES: "bare mutex of three"},
    without=("crash", "crowd", "abreast", "drain", "waiting", "held", "away"),
    served=True,
)

STORES: dict[str, Store] = {
    store.name: store for store in (EMBEDDED, REDIS, REDLOCK, ZOOKEEPER, ETCD, THREE)
}


def store_of(target: str) -> Store:
    """By its placeholder, or its scheme. A backend that a module registered is measured beside what
    needs no server."""
    scheme = target.partition(":")[0]
    return next(
        (store for store in STORES.values() if target in store.targets),
        next((store for store in STORES.values() if scheme in store.schemes), EMBEDDED),
    )
