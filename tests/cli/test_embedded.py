"""Without a URL: the command line and the embedded store, in processes that know nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.harness import holdfast, line, started, until
from tests.cli.test_run import SAY


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def listed(home: dict[str, str]) -> dict[str, int]:
    document = json.loads(holdfast("ls", "--json", env=home).stdout)
    return {lock["name"]: len(lock["waiters"]) for lock in document["locks"]}


@pytest.mark.req("B7", "R1", "R7")
def test_no_url_is_the_embedded_store(home: dict[str, str]) -> None:
    assert listed(home) == {}
    with started("run", "job", "--", "sh", "-c", SAY, env=home, stdin=subprocess.PIPE) as one:
        assert line(one) == "started"
        assert holdfast("run", "job", "--no-wait", "--", "true", env=home).returncode == 75
        with started("run", "job", "--", "echo", "next", env=home) as two:
            until(lambda: listed(home) == {"job": 1}, "the second waits")
            one.communicate("\n")
            assert (line(two), two.wait(30)) == ("next", 0)
    assert listed(home) == {}


@pytest.mark.req("B7", "R2", "holder killed -9")
def test_all_of_it_is_killed_and_the_next_has_the_lock(home: dict[str, str]) -> None:
    with started("run", "job", "--ttl", "3600", "--", "sh", "-c", "echo on; read x",
                 env=home, stdin=subprocess.PIPE) as one:  # fmt: skip
        assert line(one) == "on"
        os.killpg(one.pid, signal.SIGKILL)
        assert holdfast("run", "job", "--timeout", "20", "--", "true", env=home).returncode == 0


@pytest.mark.req("B7", "B2")
def test_release_by_force_ends_the_command(home: dict[str, str]) -> None:
    with started("run", "job", "--ttl", "3", "--", "sleep", "60", env=home) as run:
        until(lambda: "job" in listed(home), "it holds")
        ran = holdfast("release", "job", "--force", env=home)
        assert ran.stdout.startswith("job was released; its holder learns of it")
        assert run.wait(30) == 70
