"""Those parts of the suite that need processes, on the smallest store that processes can share."""

from __future__ import annotations

from holdfast.testing.conformance.exclusion import Exclusion
from holdfast.testing.conformance.processes import Processes
from holdfast.testing.conformance.suite import Suite
from tests.conformance.served import ServedStrategy


class TestServed(Processes, Exclusion, Suite):
    strategy = ServedStrategy
