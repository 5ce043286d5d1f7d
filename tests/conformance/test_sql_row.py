"""The conformance suite on `?strategy=row`: `pytest tests/conformance -k "postgres-row"`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite, Strategy
from tests.conformance.sql import MySQLStrategy, PostgresStrategy

pytestmark = pytest.mark.servers


class TestPostgresRow(ConformanceSuite):
    strategy = PostgresStrategy

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_postgres"))


class TestMySQLRow(ConformanceSuite):
    strategy = MySQLStrategy

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_mariadb"))
