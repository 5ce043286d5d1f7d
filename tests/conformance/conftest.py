"""Database servers that the conformance suites of all strategies share, and may pause and restart:
nobody else uses them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import MariaDBServer, PostgresServer


@pytest.fixture(scope="session")
def own_mariadb() -> Iterator[MariaDBServer]:
    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
