"""The command line over zk://: run, ls, show, watch, release."""

from __future__ import annotations

import uuid

import pytest

from holdfast import connect
from tests.cli.harness import PATIENCE, holdfast, started
from tests.servers import ZooKeeperServer

pytestmark = pytest.mark.servers


@pytest.mark.req("R50")
def test_commands(zookeeper_server: ZooKeeperServer) -> None:
    url = f"zk://127.0.0.1:{zookeeper_server.port}/cli-{uuid.uuid4().hex}"
    done = holdfast("run", "x", "--", "echo", "inside", url=url)
    assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr
    with connect(url, label="nightly") as locks:
        lease = locks.lock("x", renew=0.2).acquire()
        assert lease
        assert holdfast("run", "x", "--no-wait", "--", "true", url=url).returncode == 75
        for command in (("ls",), ("ls", "--json"), ("show", "x")):
            done = holdfast(*command, url=url)
            assert done.returncode == 0, done.stderr
            assert "nightly" in done.stdout
        with started("watch", "--json", url=url) as watching:
            assert watching.stdout is not None
            assert "nightly" in watching.stdout.readline()
        assert holdfast("release", "x", "--force", url=url).returncode == 0
        assert lease.lost.wait(PATIENCE)
    assert "nightly" not in holdfast("ls", "--json", url=url).stdout
