"""examples/cron: once for each night, on whichever host."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from tests.servers import RedisServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cron" / "nightly.py"
HOSTS = 3
PATIENCE = 100.0


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/locks.db"
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"{server.url}?prefix={tmp_path.name}:"


def start(store: str, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, "HOLDFAST_URL": store},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def nightly(store: str, database: Path, night: str) -> subprocess.Popen[str]:
    return start(store, [sys.executable, "-W", "error", str(EXAMPLE), str(database), night])


def said(process: subprocess.Popen[str]) -> str:
    text = process.communicate(timeout=PATIENCE)[0].strip()
    assert process.returncode == 0, text
    return text


def reports(database: Path) -> list[str]:
    with sqlite3.connect(database) as connection:
        found = [night for (night,) in connection.execute("SELECT night FROM report")]
    connection.close()
    return found


@pytest.mark.servers
@pytest.mark.req("R1", "B1")
def test_of_all_hosts_one_does_it_each_night(store: str, tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    for night in ("2026-11-16", "2026-11-17"):
        hosts = [nightly(store, database, night) for _ in range(HOSTS)]
        assert sorted(map(said, hosts)) == ["done"] + ["was done before"] * (HOSTS - 1)
    assert reports(database) == ["2026-11-16", "2026-11-17"]


@pytest.mark.req("holder killed -9")
def test_who_dies_in_the_middle_is_followed_by_the_next(tmp_path: Path) -> None:
    store, database = f"sqlite://{tmp_path}/locks.db", tmp_path / "jobs.db"
    program = (
        f"import sys, time; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import nightly\n"
        "def die(database, night):\n"
        "    print('begun', flush=True); time.sleep(1000)\n"
        "nightly.write_report = die\n"
        f"nightly.main({str(database)!r}, '2026-11-16')\n"
    )
    first = start(store, [sys.executable, "-c", program])
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    second = nightly(store, database, "2026-11-16")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert said(second) == "done"
    assert reports(database) == ["2026-11-16"]


@pytest.mark.req("R7", "B7")
def test_one_at_a_time_by_the_command_line(tmp_path: Path) -> None:
    """The crontab of the page: who comes while it runs ends with 75."""
    store = f"sqlite://{tmp_path}/locks.db"
    log = tmp_path / "log"
    job = ["sh", "-c", f"echo ran >> {log}; echo begun; read line"]
    command = [sys.executable, "-m", "holdfast.cli", "run", "nightly-report", "--no-wait", "--"]
    first = subprocess.Popen(
        [*command, *job],
        env={**os.environ, "HOLDFAST_URL": store},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    others = [start(store, [*command, *job]) for _ in range(2)]
    for other in others:
        other.communicate(timeout=PATIENCE)
    assert [other.returncode for other in others] == [75, 75]
    first.communicate("done\n", timeout=PATIENCE)
    assert first.returncode == 0
    assert log.read_text() == "ran\n"
    with holdfast.connect(store) as locks:
        assert not locks.lock("nightly-report").locked()
