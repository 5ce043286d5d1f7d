"""Pytest fixtures: one shared server of each kind a session, started when a test first asks for it.

Contract: a shared server answers, and a test leaves it as it found it: no kill, no pause or restart
that outlives the test, keys of its own. A test that breaks servers makes its own: `with
RedisServer() as server`. A server that cannot be installed or started fails the test, it never
skips it.

Load with `pytest_plugins = ["tests.servers.fixtures"]` in the top conftest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import (
    KINDS,
    EtcdCluster,
    EtcdServer,
    InstallError,
    MariaDBServer,
    PostgresServer,
    RedisCluster,
    RedisMasters,
    RedisSentinel,
    RedisServer,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    install,
)

FIXTURES: dict[str, str] = {
    "redis_server": "redis",
    "redis_sentinel": "redis-sentinel",
    "redis_cluster": "redis-cluster",
    "redis_masters": "redis-masters",
    "etcd_server": "etcd",
    "etcd_cluster": "etcd-cluster",
    "zookeeper_server": "zookeeper",
    "zookeeper_ensemble": "zookeeper-ensemble",
    "mariadb_server": "mariadb",
    "postgres_server": "postgres",
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install what the selected tests need, while no test timeout runs and no output is caught."""
    if session.config.option.collectonly:
        return
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    kinds = [KINDS[kind] for name, kind in FIXTURES.items() if name in wanted]
    try:
        install.ensure(*dict.fromkeys(family for kind in kinds for family in kind.families))
    except InstallError:
        pass  # the fixtures meet it again: each test that needs the server fails, the others run


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[RedisSentinel]:
    with RedisSentinel() as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_masters() -> Iterator[RedisMasters]:
    with RedisMasters() as servers:
        yield servers


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="session")
def etcd_cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster() as servers:
        yield servers


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble() as servers:
        yield servers


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
