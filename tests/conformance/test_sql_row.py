"""The conformance suite on `?strategy=row`: `pytest tests/conformance -k "postgres-row"`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite, Strategy
from holdfast.testing.conformance.exclusion import Exclusion
from holdfast.testing.conformance.ghosts import Ghosts
from holdfast.testing.conformance.modes import Modes
from holdfast.testing.conformance.protocol import Protocol
from holdfast.testing.conformance.waiting import Waiting
from tests.conformance.rotation import Rotating
from tests.conformance.sql import MySQLNamedLock, MySQLStrategy, PostgresStrategy

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


class TestMySQLNamedLock(Rotating, Exclusion, Waiting, Modes, Protocol, Ghosts):
    """What depends on how a waiter is woken; the rest is the same code as above."""

    strategy = MySQLNamedLock

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("own_mariadb"))
