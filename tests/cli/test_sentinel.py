"""`holdfast sentinel`: what it prints, and how it ends. What it does is in tests/faults."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

import holdfast
from holdfast.ports.thread import drive
from holdfast.sentinel.service import NAME
from tests.cli.harness import PATIENCE, line, started, until
from tests.cli.harness import holdfast as command
from tests.faults.peers import Peer
from tests.faults.redis import fresh
from tests.servers import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.req("R23", "B7")]

COUNTERS = {"looks", "searches", "anew", "missing", "returned", "freed", "changed", "unknown"}


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return fresh(redis_server.url, crash_grace=0.5)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_lines_for_people(url: str, number: signal.Signals, status: int) -> None:
    with started("sentinel", url=url) as process, Peer(url + "&label=night%1b[1m") as peer:
        assert line(process).endswith("standby: waiting to lead")
        assert line(process).endswith("leading")
        peer.acquire("lock('the \\x1b[31m lock', ttl=60)")
        peer.kill()
        said = [line(process), line(process)]
        assert "missing" in said[0]
        assert "freed" in said[1]
        assert all("\x1b" not in text for text in said)
        assert "night" in said[1]
        process.send_signal(number)
        assert process.wait(PATIENCE) == status
    with holdfast.connect(url) as locks:
        assert locks.inspect() == [], "the lead was not given back"


def test_status(url: str) -> None:
    none = command("sentinel", "--status", url=url)
    assert (none.returncode, none.stdout) == (1, "no sentinel runs\n")
    none = command("sentinel", "--status", "--json", url=url)
    assert none.returncode == 1
    assert json.loads(none.stdout)["leader"] == []
    with started("sentinel", "--json", url=url) as process:
        assert json.loads(line(process))["event"] == "standby"
        assert json.loads(line(process))["event"] == "leading"

        def told() -> dict[str, Any] | None:
            shown = command("sentinel", url, "--status", "--json")
            assert shown.returncode == 0
            document: dict[str, Any] = json.loads(shown.stdout)
            return document if document["counters"] else None

        document = until(told, "its counters")
        assert set(document["counters"]) == COUNTERS
        assert document["standby"] == []
        assert [info["pid"] for info in document["leader"]] == [str(process.pid)]
        shown = command("--url", url, "sentinel", "--status")
        assert shown.stdout.startswith("leader ")
        assert "freed     0" in shown.stdout


@pytest.mark.parametrize("value", [b"somebody's", b"[1]", b"{}", b'{"leading": {}, "counters": 1}'])
def test_what_is_no_status_is_told_as_such(url: str, value: bytes) -> None:
    """It was called a bug in holdfast."""
    with holdfast.connect(url) as locks:
        engine = locks._engine()
        written = engine.backend.cell_write(
            NAME, value, expect=None, fence=None, ttl=20.0, deadline=engine.port.now() + PATIENCE
        )
        assert drive(written)
    shown = command("sentinel", "--status", url=url)
    assert shown.returncode == 78
    assert "was not written by this version of holdfast" in shown.stderr
    assert "bug" not in shown.stderr


def test_a_store_that_is_away_is_waited_for(url: str) -> None:
    with RedisServer() as server:
        away = server.url
        server.kill()
        with started("sentinel", away + "?request_timeout=0.5", "--json") as process:
            assert json.loads(line(process))["event"] == "standby"
            assert "cannot be reached" in json.loads(line(process))["why"]
            server.start()
            until(lambda: json.loads(line(process))["event"] == "leading", "it leads")
            server.kill()
            until(lambda: json.loads(line(process))["event"] == "error", "it is said")
            server.start()
            until(lambda: json.loads(line(process))["event"] == "leading", "it leads again")


def test_wrong_usage(url: str) -> None:
    twice = command("sentinel", url, "--url", url)
    assert twice.returncode == 2
    assert "twice" in twice.stderr
