"""The conformance suite on the etcd backend: `pytest tests/conformance/test_etcd.py`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.etcd import EtcdStrategy, RoleStrategy


@pytest.mark.servers
class TestEtcd(ConformanceSuite):
    strategy = EtcdStrategy


@pytest.mark.servers
@pytest.mark.slow
class TestEtcdWithRole(ConformanceSuite):
    """As a user whose one role is the one in docs/backends/etcd.md."""

    strategy = RoleStrategy
