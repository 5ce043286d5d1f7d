"""The conformance suite on `?strategy=optimistic`: `pytest tests/conformance -k optimistic`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite, Strategy
from tests.conformance.rotation import Rotating
from tests.conformance.sql import MySQLOptimistic, PostgresOptimistic

pytestmark = pytest.mark.servers


class TestPostgresOptimistic(Rotating, ConformanceSuite):
    strategy = PostgresOptimistic

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_postgres"))


class TestMySQLOptimistic(Rotating, ConformanceSuite):
    strategy = MySQLOptimistic

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_mariadb"))
