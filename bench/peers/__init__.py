"""The registry of what can be measured beside holdfast: a peer is one module and one line here.

Contract: nothing here imports a peer. `requires` names the one package, with its version, that the
peer's own environment has (`envs.py`), and the client that it needs; without it the peer needs the
standard library only. `kinds` says which waiters it can serve, `store` beside which targets it is
measured (`bench/stores.py`). Floors are peers too: they do the least that could do the job.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVERY", "FLOORS", "KINDS", "PEERS", "PROCESSES", "TASKS", "THREADS", "Peer"]

THREADS, PROCESSES, TASKS = "threads", "processes", "tasks"
KINDS = (THREADS, PROCESSES, TASKS)


@dataclass(frozen=True)
class Peer:
    module: str  # below bench.peers
    kinds: tuple[str, ...]
    target: str = "{folder}"
    requires: tuple[str, ...] = ()
    store: str = "embedded"
    everywhere: bool = True  # or only in the contests that are for everybody: they take long
    waits: bool = True  # else it is measured only where nobody else wants the lock


_FILES = _REMOTE = (THREADS, PROCESSES)
_REDIS = "redis://{redis}/0"
_CLIENT = ("redis==8.1.0", "hiredis==3.5.0")
_MASTERS = "{redis-masters}"
_KAZOO = ("kazoo==2.11.0",)
_GRPC = ("grpcio==1.85.1",)
_POSTGRES = "postgresql://postgres@{postgres}/postgres"
_MYSQL = "mysql://root@{mariadb}/holdfast"
_ALCHEMY = ("sqlalchemy==2.0.51", "psycopg[binary]==3.3.8", "pymysql==1.2.4")

PEERS: dict[str, Peer] = {
    "filelock": Peer("filelock", _FILES, requires=("filelock==4.2.10",)),
    "portalocker": Peer("portalocker", _FILES, requires=("portalocker==4.4.2",)),
    "flock": Peer("flock", _FILES),
    "threading.Lock": Peer("in_process", (THREADS,), "threading.Lock"),
    "asyncio.Lock": Peer("in_process", (TASKS,), "asyncio.Lock"),
    "redis-py": Peer("redis_py", _REMOTE, _REDIS, _CLIENT, "redis"),
    "redis.asyncio": Peer("redis_asyncio", (TASKS,), _REDIS, _CLIENT, "redis"),
    # redis 8 has a socket timeout of five seconds by default, which cuts its BLPOP.
    "python-redis-lock": Peer(
        "python_redis_lock",
        _REMOTE,
        _REDIS,
        ("python-redis-lock==4.0.1", "redis==7.4.1", "hiredis==3.5.0"),
        "redis",
    ),
    "pottery": Peer("pottery", _REMOTE, _REDIS, ("pottery==3.0.1", *_CLIENT), "redis", False),
    # It asks for redis < 6.
    "redlock-ng": Peer(
        "redlock_ng",
        _REMOTE,
        _REDIS,
        ("redlock-ng==2.0.4", "redis==5.3.1", "hiredis==3.5.0"),
        "redis",
        False,
    ),
    "redlock-ng on five": Peer(
        "redlock_ng",
        _REMOTE,
        _MASTERS,
        ("redlock-ng==2.0.4", "redis==5.3.1", "hiredis==3.5.0"),
        "redlock",
    ),
    "pottery on five": Peer("pottery", _REMOTE, _MASTERS, ("pottery==3.0.1", *_CLIENT), "redlock"),
    "aioredlock": Peer("aioredlock", (TASKS,), _MASTERS, ("aioredlock==0.7.3",), "redlock"),
    "sherlock": Peer("sherlock", _REMOTE, _REDIS, ("sherlock==0.4.1", *_CLIENT), "redis", False),
    "tooz": Peer("tooz", _REMOTE, _REDIS, ("tooz[redis]==9.1.0", *_CLIENT), "redis", False),
    "kazoo": Peer("kazoo_lock", _REMOTE, "{zookeeper}", _KAZOO, "zookeeper"),
    "tooz on ZooKeeper": Peer(
        "tooz",
        _REMOTE,
        "zookeeper://{zookeeper}/",
        ("tooz[zookeeper]==9.1.0", *_KAZOO),
        "zookeeper",
        False,
    ),
    "aetcd": Peer("aetcd_lock", (TASKS,), "{etcd}", ("aetcd==1.0.0",), "etcd"),
    # It needs an old protobuf; and whoever waits gets a TypeError from any tenacity that runs.
    "etcd3": Peer(
        "etcd3_lock",
        (THREADS,),
        "etcd3://{etcd}",
        ("etcd3==0.12.0", "protobuf==3.20.3", "tenacity==8.5.0"),
        "etcd",
        waits=False,
    ),
    "etcd3gw": Peer(
        "etcd3_lock", (THREADS,), "etcd3gw://{etcd}", ("etcd3gw==2.7.0",), "etcd", waits=False
    ),
    "tooz on etcd": Peer(
        "tooz", _REMOTE, "etcd3+http://{etcd}/", ("tooz[etcd3gw]==9.1.0",), "etcd", False
    ),
    "etcdctl lock": Peer("etcdctl", (THREADS,), "{etcd}", store="etcd", waits=False),
    "aetcd of three": Peer(
        "aetcd_lock", (TASKS,), "{etcd-cluster}", ("aetcd==1.0.0",), "etcd-cluster"
    ),
    "pals": Peer("pals", _REMOTE, _POSTGRES, ("pals==0.4.0", *_ALCHEMY), "postgresql-advisory"),
    "sqlalchemy-dlock": Peer(
        "sqlalchemy_dlock",
        _REMOTE,
        _POSTGRES,
        ("sqlalchemy-dlock==0.9.0", *_ALCHEMY),
        "postgresql-advisory",
    ),
    "tooz on PostgreSQL": Peer(
        "tooz",
        _REMOTE,
        f"{_POSTGRES}/",
        ("tooz[postgresql]==9.1.0", "psycopg2-binary==2.9.12"),
        "postgresql-advisory",
        False,
    ),
    "sqlalchemy-dlock on MySQL": Peer(
        "sqlalchemy_dlock",
        _REMOTE,
        _MYSQL,
        ("sqlalchemy-dlock==0.9.0", *_ALCHEMY),
        "mysql-advisory",
    ),
    "tooz on MySQL": Peer(
        "tooz",
        _REMOTE,
        f"{_MYSQL}/",
        ("tooz[mysql]==9.1.0", "pymysql==1.2.4"),
        "mysql-advisory",
        False,
    ),
}
"""What people use instead; `--peer` chooses among these."""

FLOORS: dict[str, Peer] = {
    "loopback round trips": Peer("loopback", (THREADS,)),
    "two SQLite statements": Peer("statements", (THREADS,)),
    "FIFO of bare locks": Peer("in_process", (THREADS,), "fifo"),
    "SET and EVALSHA": Peer("raw_redis", (THREADS,), _REDIS, store="redis"),
    "majority of raw sockets": Peer("raw_majority", (THREADS,), _MASTERS, store="redlock"),
    "create and delete": Peer("raw_zookeeper", (THREADS,), "{zookeeper}", _KAZOO, "zookeeper"),
    "two UPDATEs": Peer(
        "raw_sql",
        (THREADS,),
        "postgresql://postgres@{postgres}/postgres",
        ("psycopg[binary]==3.3.8",),
        "postgres",
    ),
    "two UPDATEs on MariaDB": Peer(
        "raw_sql", (THREADS,), "mysql://root@{mariadb}/holdfast", ("PyMySQL==1.2.4",), "mariadb"
    ),
    "UPDATE and NOTIFY": Peer("raw_notify", _REMOTE, _POSTGRES, store="postgres"),
    "bare advisory locks": Peer("raw_advisory", _REMOTE, _POSTGRES, store="postgresql-advisory"),
    "bare GET_LOCK": Peer("raw_advisory", _REMOTE, _MYSQL, store="mysql-advisory"),
    "bare FOR UPDATE": Peer("raw_for_update", _REMOTE, _POSTGRES, store="postgresql-for-update"),
    "bare FOR UPDATE on MariaDB": Peer("raw_for_update", _REMOTE, _MYSQL, store="mysql-for-update"),
    "bare recipe": Peer("bare_recipe", _REMOTE, "{zookeeper}", _KAZOO, "zookeeper"),
    "txn and delete": Peer("raw_etcd", (THREADS,), "{etcd}", _GRPC, "etcd"),
    "bare mutex": Peer("bare_etcd", _REMOTE, "{etcd}", _GRPC, "etcd"),
    "txn and delete of three": Peer(
        "raw_etcd", (THREADS,), "{etcd-cluster}", _GRPC, "etcd-cluster"
    ),
    "bare mutex of three": Peer("bare_etcd", _REMOTE, "{etcd-cluster}", _GRPC, "etcd-cluster"),
}
"""What a scenario compares with beside them."""

EVERY = PEERS | FLOORS
