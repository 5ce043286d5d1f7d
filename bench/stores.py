"""The stores that are measured, each with its own peers: one field of entrants for every store.

Contract: a peer is compared with holdfast over the store that it uses itself, or the one that would
replace it; a lock in Redis says nothing about one in a file. Every scenario runs once for each
store, and its results are stored under that store's name. A `{placeholder}` in a target is filled
by `bench/entrants.py`. Adding a store is one entry here, a floor and peers in `bench/peers/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs

from bench.peers import PROCESSES, TASKS, THREADS

__all__ = [
    "EMBEDDED", "ETCD", "REDIS", "REDLOCK", "STORES", "THREE", "ZOOKEEPER", "Store", "kind_of",
    "store_of",
]  # fmt: skip


@dataclass(frozen=True)
class Store:
    name: str
    schemes: tuple[str, ...]
    targets: tuple[str, ...]  # measured by default, if this version has them
    floors: dict[str, str] = field(default_factory=dict)  # of hand-over, by kind of waiters
    without: tuple[str, ...] = ()  # scenarios that say nothing here
    served: bool = False  # by a process of its own, which has a core too
    crowd: int = 10_000  # tasks that wait for one lock
    waiters: tuple[int, ...] = (2, 50, 200)  # in a hand-over
    pairs: int = 5  # of runs for each ratio

    def title(self, scenario: str) -> str:
        """What its results are called."""
        return scenario if self is EMBEDDED else f"{self.name}-{scenario}"


EMBEDDED = Store(
    "embedded",
    ("memory", "sqlite"),
    ("memory://bench", "sqlite:///{folder}/holdfast.db"),
    {THREADS: "FIFO of bare locks", PROCESSES: "flock", TASKS: "asyncio.Lock"},
    without=("away",),
    waiters=(50, 200),
)
REDIS = Store(
    "redis",
    ("redis",),
    ("redis://{redis}/0",),
    # After a kill everybody waits for the ttl: 26 s of it, fifty times, show nothing.
    without=("crash", "away", "imports"),
    served=True,
    waiters=(2, 10, 50, 200),
    pairs=7,
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
        "waiting", "crash", "held", "imports", "once", "stripes", "election",
    ),
    served=True,
)  # fmt: skip
ZOOKEEPER = Store(
    "zookeeper",
    ("zk",),
    ("zk://{zookeeper}/bench",),
    {THREADS: "bare recipe", PROCESSES: "bare recipe"},
    # After a kill everybody waits for the session's end.
    without=("crash", "handover-threads", "away", "imports", "once", "stripes"),
    served=True,
    crowd=1_000,  # each lists the whole line
)

ETCD = Store(
    "etcd",
    ("etcd",),
    ("etcd://{etcd}/bench",),
    {THREADS: "bare mutex", PROCESSES: "bare mutex"},
    # Each write is a flush to its disk: of ten thousand tasks nothing is seen but that.
    without=(
        "crash", "crowd", "abreast", "handover-threads", "handover-tasks", "drain", "away",
        "imports",
    ),
    served=True,
)  # fmt: skip
THREE = Store(
    "etcd-cluster",
    (),
    ("etcd://{etcd-cluster}/bench",),
    {THREADS: "bare mutex of three", PROCESSES: "bare mutex of three"},
    without=(
        "crash", "crowd", "abreast", "handover-threads", "handover-tasks", "drain", "waiting",
        "held", "away", "imports", "once", "stripes", "election",
    ),
    served=True,
    waiters=(2, 50),
)  # fmt: skip

_POSTGRES = "postgresql://postgres@{postgres}/postgres?sslmode=disable"
_MARIADB = "mysql://root@{mariadb}/holdfast"
_WITHOUT = (
    "crash", "crowd", "abreast", "handover-threads", "handover-tasks", "drain", "waiting", "away",
    "imports", "once", "stripes",
)  # fmt: skip
"""Everybody waits for a ttl; ten thousand waiters are no business of a database; and the threads of
one process share its looks, so that four processes ask more of it."""

POSTGRES = Store(
    "postgres",
    ("postgresql", "postgres"),
    (_POSTGRES,),
    {THREADS: "UPDATE and NOTIFY", PROCESSES: "UPDATE and NOTIFY"},
    without=_WITHOUT,
    served=True,
    crowd=100,
)
MARIADB = Store(
    "mariadb",
    ("mysql", "mariadb"),
    # Who waits for a bell has a connection.
    (_MARIADB, f"{_MARIADB}?wake=named-lock&max_connections=400"),
    without=_WITHOUT,
    served=True,
    crowd=100,
    waiters=(2, 50),
)

# Only what a lock alone in its connection has to show: there is no line to look at, and no batch.
_BOUND = (
    "crash", "held", "crowd", "waiting", "drain", "abreast", "handover-threads", "handover-tasks",
    "away", "imports", "once", "stripes", "election",
)  # fmt: skip
POSTGRES_ADVISORY = Store(
    "postgresql-advisory",
    ("postgresql advisory",),
    ("postgresql://postgres@{postgres}/postgres?strategy=advisory&max_connections=400",),
    {THREADS: "bare advisory locks", PROCESSES: "bare advisory locks"},
    without=_BOUND,
    served=True,
    waiters=(50,),
)
MYSQL_ADVISORY = Store(
    "mysql-advisory",
    ("mysql advisory",),
    ("mysql://root@{mariadb}/holdfast?strategy=advisory&max_connections=400",),
    {THREADS: "bare GET_LOCK", PROCESSES: "bare GET_LOCK"},
    without=_BOUND,
    served=True,
    waiters=(50,),
)

POSTGRES_FOR_UPDATE = Store(
    "postgresql-for-update",
    ("postgresql for-update",),
    ("postgresql://postgres@{postgres}/postgres?strategy=for-update&max_connections=400",),
    {THREADS: "bare FOR UPDATE", PROCESSES: "bare FOR UPDATE"},
    without=(*_BOUND, "handover-processes"),
    served=True,
)
MYSQL_FOR_UPDATE = Store(
    "mysql-for-update",
    ("mysql for-update",),
    ("mysql://root@{mariadb}/holdfast?strategy=for-update&max_connections=400",),
    {THREADS: "bare FOR UPDATE on MariaDB", PROCESSES: "bare FOR UPDATE on MariaDB"},
    without=(*_BOUND, "handover-processes"),
    served=True,
)

_ALL = (
    EMBEDDED, REDIS, REDLOCK, ZOOKEEPER, ETCD, THREE, POSTGRES, MARIADB, POSTGRES_ADVISORY,
    MYSQL_ADVISORY, POSTGRES_FOR_UPDATE, MYSQL_FOR_UPDATE,
)  # fmt: skip
STORES: dict[str, Store] = {store.name: store for store in _ALL}


def kind_of(url: str) -> str:
    """The scheme, with the strategy where there are several."""
    scheme = url.partition(":")[0]
    strategy = parse_qs(url.partition("?")[2]).get("strategy")
    return f"{scheme} {strategy[0]}" if strategy else scheme


def store_of(target: str) -> Store:
    """By its placeholder, or its scheme. A backend that a module registered is measured beside what
    needs no server."""
    kind = kind_of(target)
    return next(
        (store for store in STORES.values() if target in store.targets),
        next((store for store in STORES.values() if kind in store.schemes), EMBEDDED),
    )
