"""For stores that differ from one already tested in few ways: each test on one port in each run.

Contract: the run's seed, which pytest prints, decides whether a test runs on threads or on asyncio,
so that over runs all of it is shown and one run stays short (`tests/rotation.py`). Stores that are
nobody's variant do not use this.
"""

from __future__ import annotations

import hashlib

import pytest

from holdfast.testing.conformance.harness import PORTS
from holdfast.testing.conformance.suite import Suite
from tests.rotation import EVERYTHING

__all__ = ["Rotating"]


class Rotating(Suite):
    """Stands before the themes: `class TestMine(Rotating, ConformanceSuite)`."""

    @classmethod
    def ports_of(cls, function: object, config: pytest.Config) -> tuple[str, ...]:
        ports: tuple[str, ...] = tuple(getattr(function, "ports", PORTS))
        if EVERYTHING:
            return ports
        seed = config.getoption("randomly_seed", 0)
        name = getattr(function, "__name__", "")
        draw = hashlib.sha256(f"{seed} {cls.__name__} {name}".encode()).digest()[0]
        return (ports[draw % len(ports)],)
