"""The conformance suite on the sqlite backend: `pytest tests/conformance -k sqlite`."""

from __future__ import annotations

from holdfast.testing.conformance import ConformanceSuite
from holdfast.testing.conformance.cancellation import Cancellation
from holdfast.testing.conformance.cells import Cells
from holdfast.testing.conformance.faults import Faults
from holdfast.testing.conformance.fencing import Fencing
from holdfast.testing.conformance.ghosts import Ghosts
from holdfast.testing.conformance.losses import Losses
from holdfast.testing.conformance.protocol import Protocol
from holdfast.testing.conformance.suite import Suite
from holdfast.testing.conformance.waiting import Waiting
from tests.conformance.sqlite import BrokenSqliteStrategy, SqliteStrategy


class TestSqlite(ConformanceSuite):
    strategy = SqliteStrategy


class TestBrokenSqlite(
    Waiting, Losses, Fencing, Cells, Protocol, Faults, Ghosts, Cancellation, Suite
):
    strategy = BrokenSqliteStrategy
