"""All themes in one class, to be subclassed with a strategy. See the package's docstring.

Contract: the strategy is made and started once for each subclass, and stopped after its last test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from holdfast.testing.conformance.barrier import Barrier
from holdfast.testing.conformance.cancellation import Cancellation
from holdfast.testing.conformance.cells import Cells
from holdfast.testing.conformance.election import Election
from holdfast.testing.conformance.changing import Changing
from holdfast.testing.conformance.exclusion import Exclusion
from holdfast.testing.conformance.faults import Faults
from holdfast.testing.conformance.fencing import Fencing
from holdfast.testing.conformance.ghosts import Ghosts
from holdfast.testing.conformance.harness import PORTS, Api
from holdfast.testing.conformance.inspection import Inspection
from holdfast.testing.conformance.latch import Latch
from holdfast.testing.conformance.leases import Leases
from holdfast.testing.conformance.losses import Losses
from holdfast.testing.conformance.modes import Modes
from holdfast.testing.conformance.multi import Multi
from holdfast.testing.conformance.names import Names
from holdfast.testing.conformance.once import Once
from holdfast.testing.conformance.optimistic import Optimists
from holdfast.testing.conformance.processes import Processes
from holdfast.testing.conformance.protocol import Protocol
from holdfast.testing.conformance.reentrancy import Reentrancy
from holdfast.testing.conformance.strategy import Strategy
from holdfast.testing.conformance.stripes import Striped
from holdfast.testing.conformance.waiting import Waiting

__all__ = ["ConformanceSuite", "Suite"]


class Suite:
    """Runs the themes it is combined with on a strategy, once for each port."""

    strategy: ClassVar[type[Strategy]]
    """The strategy's class; made once for all tests of the suite's class."""

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        """Override to use fixtures: `return Mine(request.getfixturevalue("my_server"))`."""
        return cls.strategy()

    @classmethod
    def ports_of(cls, function: object, config: pytest.Config) -> tuple[str, ...]:
        """The ports that a test runs on, of those that it is for."""
        return tuple(getattr(function, "ports", PORTS))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "api" in metafunc.fixturenames:
            ports = self.ports_of(metafunc.function, metafunc.config)
            ids = [f"{self.strategy.name}-{port}" for port in ports]
            metafunc.parametrize("api", ports, ids=ids, indirect=True)

    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, request: pytest.FixtureRequest) -> Iterator[Strategy]:
        strategy = cls.make_strategy(request)
        try:
            strategy.start_server()
            yield strategy
        finally:
            strategy.stop_server()

    @pytest.fixture
    def api(self, started: Strategy, request: pytest.FixtureRequest) -> Api:
        return Api(started, request.param)


class ConformanceSuite(
    Suite,
    Exclusion,
    Waiting,
    Modes,
    Leases,
    Losses,
    Fencing,
    Reentrancy,
    Names,
    Inspection,
    Cells,
    Optimists,
    Protocol,
    Faults,
    Ghosts,
    Cancellation,
    Processes,
    Changing,
    Multi,
    Striped,
    Once,
    Election,
    Latch,
    Barrier,
):
    """Everything."""
