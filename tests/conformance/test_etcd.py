"""The conformance suite on the etcd backend: `pytest tests/conformance/test_etcd.py`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.etcd import EtcdStrategy, RoleStrategy

pytestmark = pytest.mark.servers


class TestEtcd(ConformanceSuite):
    """As a user whose one role is the one in docs/backends/etcd.md."""

    strategy = RoleStrategy


class TestEtcdWithoutUsers(ConformanceSuite):
    """Nobody logs in: all else is the same."""

    strategy = EtcdStrategy
