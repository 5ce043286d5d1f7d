"""The database servers of the conformance suites, which pause and restart them: those that all
tests of a worker share, one test after another. After each test they answer again."""

from __future__ import annotations

import pytest

from tests.servers import MariaDBServer, PostgresServer


@pytest.fixture(scope="session")
def own_mariadb(mariadb_server: MariaDBServer) -> MariaDBServer:
    return mariadb_server


@pytest.fixture(scope="session")
def own_postgres(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server
