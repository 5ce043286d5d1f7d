"""The conformance suite on the ZooKeeper backend: `pytest tests/conformance -k zookeeper`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.zookeeper import ZooKeeperStrategy

pytestmark = pytest.mark.servers


class TestZooKeeper(ConformanceSuite):
    strategy = ZooKeeperStrategy
