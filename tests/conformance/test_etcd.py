"""The conformance suite on the etcd backend: `pytest tests/conformance/test_etcd.py`."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.etcd import EtcdStrategy


@pytest.mark.servers
class TestEtcd(ConformanceSuite):
    strategy = EtcdStrategy
