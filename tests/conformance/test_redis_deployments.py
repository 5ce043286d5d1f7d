"""The conformance suite's rules on every kind of deployment (R37): themes that need no proxy."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance.exclusion import Exclusion
from holdfast.testing.conformance.inspection import Inspection
from holdfast.testing.conformance.modes import Modes
from holdfast.testing.conformance.multi import Multi
from holdfast.testing.conformance.stripes import Striped
from holdfast.testing.conformance.suite import Suite
from tests.conformance.redis_deployments import (
    ClusterStrategy,
    SentinelStrategy,
    TlsStrategy,
    UnixStrategy,
)


@pytest.mark.servers
@pytest.mark.req("R37")
class TestRedisTls(Exclusion, Modes, Suite):
    strategy = TlsStrategy


@pytest.mark.servers
@pytest.mark.req("R37")
class TestRedisUnix(Exclusion, Suite):
    strategy = UnixStrategy


@pytest.mark.servers
@pytest.mark.req("R37", "R33")
class TestRedisSentinel(Exclusion, Suite):
    strategy = SentinelStrategy


@pytest.mark.servers
@pytest.mark.req("R37")
class TestRedisCluster(Exclusion, Modes, Inspection, Multi, Striped, Suite):
    strategy = ClusterStrategy
