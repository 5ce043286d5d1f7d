"""The conformance suite on the memory backend: `pytest tests/conformance -k memory`."""

from __future__ import annotations

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.memory import MemoryStrategy


class TestMemory(ConformanceSuite):
    strategy = MemoryStrategy
