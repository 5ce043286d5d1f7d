"""kill -9 at random moments of multi, stripes and downgrade. Many more: `tests/stress/kills.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.req("B5", "R11", "R2", "holder killed -9", "waiter killed")
@pytest.mark.parametrize(
    ("server", "primitive"),
    [("redis", "multi"), ("redis", "any"), ("redis", "downgrade"), ("etcd", "multi")],
)
def test_nobody_waits_for_ever_and_nothing_is_left(server: str, primitive: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.stress.kills", server, primitive, "--rounds", "6"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["wrong"] == []
    assert seen["turns"] > 10
