"""Examples of once, election, latch and barrier: each ends with 0 if it showed what it says."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.servers import RedisServer

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def ran(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.servers
@pytest.mark.req("R70", "B5")
@pytest.mark.timeout(300)
def test_one_process_refreshes_the_token_and_fifty_use_it(redis_server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0?prefix=token-{uuid.uuid4()}"
    said = ran("access_token.py", url, "--processes", "50", "--seconds", "3").splitlines()
    assert len(said) == 3
    assert not said[0].endswith(" 0 failed")  # without a lock it fails
    assert said[1].endswith(" 0 failed")
    assert said[2].endswith(" 0 read again,    0 failed")


@pytest.mark.req("B5", "holder killed -9")
@pytest.mark.timeout(300)
def test_a_leader_is_killed_and_the_next_one_leads() -> None:
    said = ran("leader.py")
    assert said.count("kill -9") == 2
    assert said.count("after the death") == 2


@pytest.mark.req("B5", "holder killed -9")
@pytest.mark.timeout(300)
def test_workers_in_rounds_are_told_of_a_death() -> None:
    said = ran("rounds.py")
    assert "round 3 is done" in said
    assert said.count("died, or left") == 3
