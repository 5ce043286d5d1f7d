"""The conformance suite on connection-bound locks: `pytest tests/conformance -k mysql-advisory`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite, Strategy
from tests.conformance.rotation import Rotating
from tests.conformance.sql_bound import (
    MySQLAdvisory,
    MySQLForUpdate,
    PostgresAdvisory,
    PostgresForUpdate,
)

pytestmark = pytest.mark.servers


class OnPostgres(Rotating, ConformanceSuite):
    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_postgres"))  # type: ignore[call-arg]


class OnMariaDB(Rotating, ConformanceSuite):
    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_mariadb"))  # type: ignore[call-arg]


class TestPostgresAdvisory(OnPostgres):
    strategy = PostgresAdvisory


class TestPostgresForUpdate(OnPostgres):
    strategy = PostgresForUpdate


class TestMySQLAdvisory(OnMariaDB):
    strategy = MySQLAdvisory


class TestMySQLForUpdate(OnMariaDB):
    strategy = MySQLForUpdate
