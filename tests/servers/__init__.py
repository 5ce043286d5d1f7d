"""The one place that knows how to install and run real servers for tests.

    from tests.servers import RedisServer
    with RedisServer() as server:
        server.url, server.kill(), server.restart()

Shared ones are pytest fixtures (`fixtures.py`); `python -m tests.servers --help` for the shell.
"""

from __future__ import annotations

from tests.servers.base import Group, Process, Server, ServerError
from tests.servers.etcd import EtcdCluster, EtcdServer
from tests.servers.install import InstallError
from tests.servers.redis import RedisError, RedisMasters, RedisServer
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.sql import MariaDBServer, PostgresServer
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

KINDS: dict[str, type[Server]] = {
    "redis": RedisServer,
    "redis-sentinel": RedisSentinel,
    "redis-cluster": RedisCluster,
    "redis-masters": RedisMasters,
    "etcd": EtcdServer,
    "etcd-cluster": EtcdCluster,
    "zookeeper": ZooKeeperServer,
    "zookeeper-ensemble": ZooKeeperEnsemble,
    "mariadb": MariaDBServer,
    "postgres": PostgresServer,
}

__all__ = [
    "KINDS",
    "EtcdCluster",
    "EtcdServer",
    "Group",
    "InstallError",
    "MariaDBServer",
    "PostgresServer",
    "Process",
    "RedisCluster",
    "RedisError",
    "RedisMasters",
    "RedisSentinel",
    "RedisServer",
    "Server",
    "ServerError",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
