"""The conformance suite on the etcd backend: `pytest tests/conformance/test_etcd.py`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite
from holdfast.testing.conformance.cells import Cells
from holdfast.testing.conformance.exclusion import Exclusion
from holdfast.testing.conformance.leases import Leases
from holdfast.testing.conformance.modes import Modes
from holdfast.testing.conformance.suite import Suite
from holdfast.testing.conformance.waiting import Waiting
from tests.conformance.etcd import EtcdStrategy, RoleStrategy

pytestmark = pytest.mark.servers


class TestEtcd(ConformanceSuite):
    """As a user whose one role is the one in docs/backends/etcd.md."""

    strategy = RoleStrategy


class TestEtcdWithoutUsers(Exclusion, Modes, Waiting, Leases, Cells, Suite):
    """Nobody logs in: all else is the same, so not everything is shown again."""

    strategy = EtcdStrategy
