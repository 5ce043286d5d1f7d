"""A few kills of -9 at random moments inside each tool; the 200 of each: `make kills`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stress.kills import TOOLS

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4


@pytest.mark.req("B5", "R2", "R11", "R70", "law 3", "holder killed -9", "waiter killed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("server", "tool"), [*(("redis", tool) for tool in TOOLS), ("etcd", "multi")]
)
def test_nobody_waits_for_ever_and_nothing_is_left(server: str, tool: str) -> None:
    """In a process of its own, which has no thread when it forks."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.stress.kills", server, tool, "--kills", str(KILLS),
         "--lease", "3"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.stdout, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["violations"] == [], f"{seen}\n{ran.stderr}"
    assert ran.returncode == 0, ran.stderr
    assert seen["kills"] == KILLS
    assert seen["turns"] > 10
