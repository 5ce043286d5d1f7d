"""The command line over redlock://: run, ls, show, watch, release."""

from __future__ import annotations

import json

import pytest

from holdfast import connect
from tests.cli.harness import PATIENCE, holdfast, started
from tests.faults.redis import fresh
from tests.servers import RedisMasters

pytestmark = pytest.mark.servers

WIDE = {"COLUMNS": "200"}


@pytest.mark.req("R50", "B7")
def test_commands() -> None:
    with RedisMasters(count=3) as masters:
        url = fresh(masters.url, quarantine="off", node_timeout=1)
        done = holdfast("run", "x", "--", "echo", "inside", url=url)
        assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr
        with connect(url, label="nightly") as locks:
            lease = locks.lock("x", renew=0.2, metadata={"job": "import"}).acquire()
            assert lease
            assert holdfast("run", "x", "--no-wait", "--", "true", url=url).returncode == 75
            for command in (("ls",), ("ls", "--json"), ("show", "x")):
                done = holdfast(*command, url=url, env=WIDE)
                assert done.returncode == 0, done.stderr
                assert "nightly" in done.stdout
            shown = holdfast("show", "x", url=url, env=WIDE).stdout
            assert "import" in shown
            assert "nodes=3/3" in shown
            assert str(lease.fence) in shown
            with started("watch", "--json", "--interval", "0.05", url=url) as watching:
                assert watching.stdout is not None
                first = json.loads(watching.stdout.readline())
                assert "nightly" in json.dumps(first)
                with locks.lock("y"):
                    seen = watching.stdout.readline()
                    assert '"y"' in seen
                assert holdfast("release", "x", "--force", url=url).returncode == 0
                assert lease.lost.wait(PATIENCE)
                while "nightly" in seen:
                    seen = watching.stdout.readline()
        assert "nightly" not in holdfast("ls", "--json", url=url).stdout
