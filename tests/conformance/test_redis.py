"""The conformance suite on a real redis-server: `pytest tests/conformance -k redis`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.redis import RedisStrategy


@pytest.mark.servers
class TestRedis(ConformanceSuite):
    strategy = RedisStrategy
