"""A few kills inside each tool, on Redis; the 200: `python -m tests.stress.tools redis`."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.stress.tools import TOOLS

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = 4


@pytest.mark.servers
@pytest.mark.req("B5", "R2", "R70", "law 3", "holder killed -9", "waiter killed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", TOOLS)
def test_kills_at_random_moments(tool: str, redis_server: RedisServer) -> None:
    """In a process of its own, which has no thread when it forks."""
    url = f"redis://127.0.0.1:{redis_server.port}/0?prefix=kills-{uuid.uuid4()}"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.stress.tools", url, "--tool", tool,
         "--kills", str(KILLS), "--lease", "3"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    outcome = json.loads(ended.stdout)
    assert outcome["violations"] == [], f"{outcome}\n{ended.stderr}"
    assert ended.returncode == 0, ended.stderr
    assert outcome["kills"] == KILLS
