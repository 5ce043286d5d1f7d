"""examples/celery_app: a real worker with forked processes, and a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import holdfast
from tests.servers import RedisServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "celery_app"
PATIENCE = 100.0

pytestmark = [pytest.mark.servers, pytest.mark.req("B3", "R1")]


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accounts")


@pytest.fixture(scope="module")
def environment(redis_server: RedisServer, accounts: Path) -> Iterator[dict[str, str]]:
    broker = f"redis://127.0.0.1:{redis_server.port}/5"  # whose keys have names of their own
    yield {
        **os.environ,
        "HOLDFAST_URL": f"{redis_server.url}?prefix={accounts.name}:",
        "CELERY_BROKER_URL": broker,
        "ACCOUNTS": str(accounts),
        "PYTHONPATH": str(EXAMPLE),
    }
    with redis.Redis.from_url(broker) as client:
        client.flushdb()


@pytest.fixture(scope="module")
def worker(environment: dict[str, str], accounts: Path) -> Iterator[Path]:
    """Its log."""
    log = accounts / "worker.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency=3",
             "--loglevel=INFO", "--without-gossip", "--without-mingle"],
            env=environment, stdout=out, stderr=out, cwd=accounts,
        )  # fmt: skip
        try:
            until(lambda: " ready." in log.read_text(), log)
            yield log
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()


def succeeded(task: str, log: Path) -> int:
    return len(re.findall(rf"Task tasks\.{task}\[.*succeeded in", log.read_text()))


def until(happened: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def send(environment: dict[str, str], program: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"from tasks import refresh, settle\n{program}"],
        env=environment, check=True, timeout=PATIENCE,
    )  # fmt: skip


def test_tasks_of_one_account_are_done_one_at_a_time(
    environment: dict[str, str], worker: Path, accounts: Path
) -> None:
    send(environment, "for n in range(12): settle.delay(str(n % 2), 10)")
    until(lambda: succeeded("settle", worker) == 12, worker)
    assert [(accounts / account).read_text() for account in "01"] == ["60", "60"]
    assert "Traceback" not in worker.read_text()


def test_a_task_that_is_being_done_is_not_done_again(
    environment: dict[str, str], worker: Path, accounts: Path
) -> None:
    with holdfast.connect(environment["HOLDFAST_URL"]) as locks, locks.lock("refresh:7"):
        send(environment, "for n in range(3): refresh.delay('7')")
        until(lambda: succeeded("refresh", worker) == 3, worker)
        assert not (accounts / "7.log").exists()
    send(environment, "refresh.delay('7')")
    until(lambda: succeeded("refresh", worker) == 4, worker)
    assert (accounts / "7.log").read_text() == "refreshed\n"
