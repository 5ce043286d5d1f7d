"""The test servers keep the promises that the fault tests build on (tests/servers).

Shared servers come from the session's fixtures; whatever breaks one has a server of its own.

Over 400 lines: a list of cases, each read by itself, that share their servers.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import (
    KINDS,
    EtcdCluster,
    EtcdServer,
    Group,
    InstallError,
    MariaDBServer,
    PostgresServer,
    Process,
    RedisCluster,
    RedisError,
    RedisMasters,
    RedisSentinel,
    RedisServer,
    Server,
    ServerError,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    install,
    reaper,
)
from tests.servers.base import wait_until
from tests.servers.fixtures import FIXTURES
from tests.servers.home import HOST, Home
from tests.servers.sql import SqlServer

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parent.parent
SHORT = 0.3  # what we wait for a paused server
LONG = 10.0  # what we give a healthy one on a loaded machine


def etcd_put(node: EtcdServer, key: str, value: str) -> None:
    words = {"key": key, "value": value}
    node.api("/v3/kv/put", {k: base64.b64encode(v.encode()).decode() for k, v in words.items()})


def etcd_get(node: EtcdServer, key: str) -> str | None:
    found = node.api("/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
    return base64.b64decode(found["kvs"][0]["value"]).decode() if "kvs" in found else None


def state(pid: int) -> str:
    """The process's state as the kernel says it, T for stopped; empty when it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Has it ended? Also when it waits for init to take notice, as an orphan may for seconds."""
    return state(pid) in {"", "Z"}


@contextmanager
def python(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process in the project's root, that ends with us."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        reaper.watch_process(process.pid)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)
            reaper.forget_process(process.pid)


# Every kind starts and answers.


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_kind_answers(fixture: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(fixture)
    assert server.ping(LONG)
    assert server.kind == FIXTURES[fixture]
    assert server.version()[0].isdigit()
    assert all(str(port) in server.url for _, port in server.addresses)
    assert all(node.alive for node in server.processes)


def test_registry_and_fixtures_name_the_same_kinds() -> None:
    assert set(FIXTURES.values()) == set(KINDS)
    assert all(kind == server.kind for kind, server in KINDS.items())


def test_redis_speaks(redis_server: RedisServer) -> None:
    assert redis_server.call("SET", "speaks", "ä b\r\n") == "OK"
    assert redis_server.call("GET", "speaks") == "ä b\r\n"
    assert redis_server.call("EVAL", "return {1, 'x', false}", 0) == [1, "x", None]
    with pytest.raises(RedisError, match="WRONGTYPE"):
        redis_server.call("LPUSH", "speaks", "x")


def test_masters_are_independent(redis_masters: RedisMasters) -> None:
    assert len(redis_masters.nodes) == 5
    redis_masters[0].call("SET", "independent", "yes")
    assert redis_masters[1].call("GET", "independent") is None
    assert all(node.is_master() for node in redis_masters.nodes)


def test_sentinel_names_the_master(redis_sentinel: RedisSentinel) -> None:
    master = redis_sentinel.master()
    assert master is not None
    assert master.info("replication")["connected_slaves"] == "2"
    assert sum(node.is_master() for node in redis_sentinel.nodes) == 1


def test_cluster_answers_moved(redis_cluster: RedisCluster) -> None:
    owner = redis_cluster.owner_of("moved")
    assert owner.call("SET", "moved", "here") == "OK"
    other = next(node for node in redis_cluster.nodes if node.is_master() and node is not owner)
    with pytest.raises(RedisError, match=rf"^MOVED \d+ {HOST}:{owner.port}$"):
        other.call("GET", "moved")


def test_cluster_has_three_masters_and_three_replicas(redis_cluster: RedisCluster) -> None:
    assert [node.is_master() for node in redis_cluster.nodes] == [True] * 3 + [False] * 3
    assert all("cluster_state:ok" in str(n.call("CLUSTER", "INFO")) for n in redis_cluster.nodes)


def test_etcd_cluster_shares_its_data(etcd_cluster: EtcdCluster) -> None:
    assert etcd_cluster.leader() in etcd_cluster.nodes
    etcd_put(etcd_cluster[0], "shared", "yes")
    assert etcd_get(etcd_cluster[2], "shared") == "yes"


def test_zookeeper_ensemble_has_one_leader(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    modes = sorted(str(node.mode()) for node in zookeeper_ensemble.nodes)
    assert modes == ["follower", "follower", "leader"]


@pytest.mark.parametrize("fixture", ["mariadb_server", "postgres_server"])
def test_sql_speaks(fixture: str, request: pytest.FixtureRequest) -> None:
    server: SqlServer = request.getfixturevalue(fixture)
    assert server.query("SELECT 1, 'two'") == "1\ttwo"
    with pytest.raises(ServerError, match="nowhere"):
        server.query("SELECT * FROM nowhere")


# Restart keeps the data, or loses it.


def test_redis_restart_keeps_what_it_persists() -> None:
    with RedisServer(persist=True) as server:
        port, pid = server.port, server.pid
        server.call("SET", "kept", "yes")
        server.restart()
        assert (server.port, server.call("GET", "kept")) == (port, "yes")
        assert server.pid != pid
        server.kill()
        server.restart()
        assert server.call("GET", "kept") == "yes"
        server.restart(wipe=True)
        assert server.call("GET", "kept") is None


def test_redis_without_persistence_forgets() -> None:
    with RedisServer() as server:
        server.call("SET", "lost", "yes")
        server.restart()
        assert server.call("GET", "lost") is None


def test_etcd_restart() -> None:
    with EtcdServer() as server:
        etcd_put(server, "kept", "yes")
        server.kill()
        server.restart()
        assert etcd_get(server, "kept") == "yes"
        server.restart(wipe=True)
        assert etcd_get(server, "kept") is None


def test_zookeeper_restart() -> None:
    with ZooKeeperServer() as server:
        server.shell("create", "/kept", "yes")
        server.kill()
        server.restart()
        assert "yes" in server.shell("get", "/kept").splitlines()
        server.restart(wipe=True)
        assert "kept" not in server.shell("ls", "/")


@pytest.mark.parametrize("kind", [MariaDBServer, PostgresServer])
def test_sql_restart(kind: type[SqlServer]) -> None:
    with kind() as server:
        # A commit must survive a crash also in the fast, not durable mode.
        schema = "holdfast" if kind is MariaDBServer else "public"
        server.query(f"CREATE TABLE {schema}.kept (x INT)")
        server.query(f"INSERT INTO {schema}.kept VALUES (42)")
        server.kill()
        server.restart()
        assert server.query(f"SELECT x FROM {schema}.kept") == "42"
        server.restart(wipe=True)
        with pytest.raises(ServerError, match="kept"):
            server.query(f"SELECT x FROM {schema}.kept")


# Pause, kill, stop.


@pytest.fixture(params=["redis", "etcd", "zookeeper", "mariadb", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[Process]:
    server: Process = request.getfixturevalue(f"{request.param}_server")
    yield server
    server.resume()
    wait_until(server.ping, f"{server.name} answering again", 60)


def test_pause_silences_and_resume_heals(shared: Process) -> None:
    pid = shared.pid
    shared.pause()
    began = time.monotonic()
    assert not shared.ping(SHORT)
    assert time.monotonic() - began >= SHORT * 0.9, "refused, not silent"
    shared.resume()
    wait_until(shared.ping, f"{shared.name} answering again", 60)
    assert shared.pid == pid


def test_pause_reaches_the_backends_of_postgres(postgres_server: PostgresServer) -> None:
    asleep = "SELECT pid FROM pg_stat_activity WHERE query ~ 'pg_[s]leep'"
    client = [*postgres_server.client(), "SELECT pg_sleep(60)"]
    with subprocess.Popen(client, stderr=subprocess.DEVNULL) as asking:
        backend = int(wait_until(lambda: postgres_server.query(asleep), "the backend at work", 60))
        postgres_server.pause()
        try:
            wait_until(lambda: state(backend) == "T", "the backend paused", 60)
        finally:
            postgres_server.resume()
        wait_until(lambda: state(backend) != "T", "the backend resumed", 60)
        postgres_server.query(f"SELECT pg_terminate_backend({backend})")
        asking.wait(60)


def test_kill_is_noticed() -> None:
    with RedisMasters(count=2) as servers:
        victim = servers[0]
        pid = victim.pid
        victim.kill()
        assert not victim.alive
        assert not victim.ping()
        assert gone(pid)
        assert not servers.ping()
        assert servers[1].ping(LONG)
        with pytest.raises(ServerError, match="not running"):
            victim.pause()
        victim.kill()  # twice is no error
        victim.restart()
        assert servers.ping(LONG)


def test_node_of_a_group_can_stop_and_come_back() -> None:
    with RedisMasters(count=2, persist=True) as servers:
        servers[0].call("SET", "kept", "yes")
        servers[0].stop()
        assert not servers[0].alive
        servers[0].restart()
        assert servers[0].call("GET", "kept") == "yes"


def test_port_stays_reserved_while_the_server_is_down(redis_masters: RedisMasters) -> None:
    with RedisServer() as server:
        server.kill()
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind((HOST, server.port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, server.port), 1.0)
        server.restart()
    with socket.socket() as heir:
        heir.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        heir.bind((HOST, server.port))


@pytest.mark.parametrize("kind", [RedisSentinel, EtcdServer, MariaDBServer, PostgresServer])
def test_stop_leaves_nothing(kind: type[Server]) -> None:
    server = kind().start()
    pids = [node.pid for node in server.processes]
    server.processes[0].pause()  # a paused process must end too
    server.stop()
    assert all(map(gone, pids))
    assert not server.home.path.exists()
    server.stop()  # twice is no error
    with pytest.raises(ServerError, match="make a new one"):
        server.restart()


def test_starting_twice_is_refused_and_harmless(redis_server: RedisServer) -> None:
    with pytest.raises(ServerError, match="runs already"):
        redis_server.start()
    assert redis_server.ping(LONG)


def test_failed_start_shows_the_log_and_leaves_nothing() -> None:
    server = RedisServer(settings={"maxmemory": "plenty"})
    with pytest.raises(ServerError, match=r"(?s)ended with status 1; .*maxmemory plenty"):
        server.start()
    assert not server.home.path.exists()


def test_server_outlives_the_thread_that_started_it() -> None:
    with RedisServer() as server:
        nemesis = threading.Thread(target=server.restart)
        nemesis.start()
        nemesis.join()
        assert server.ping(LONG)


# Elections.


def test_sentinel_fails_over() -> None:
    with RedisSentinel() as servers:
        with servers.failing_over() as first:
            first.kill()
        second = servers.wait_master(other_than=first)
        assert second.call("SET", "after", "failover") == "OK"
        first.restart()
        wait_until(lambda: not first.is_master() and first.linked(), "the old master following", 60)
        assert first.call("GET", "after") == "failover"


def test_cluster_fails_over() -> None:
    with RedisCluster() as servers:
        first = servers.owner_of("key")
        with servers.eager():
            first.kill()
            wait_until(lambda: servers.owner_of("key") is not first, "a replica taking over", 60)
        servers.wait_ok()
        assert servers.owner_of("key").call("SET", "key", "value") == "OK"


def test_etcd_elects_a_new_leader() -> None:
    with EtcdCluster() as servers:
        first = servers.wait_leader()
        etcd_put(first, "kept", "yes")
        first.kill()
        second = servers.wait_leader(other_than=first, timeout=60)
        assert etcd_get(second, "kept") == "yes"
        first.restart(wipe=True)  # an operator would replace the member: so does restart
        assert etcd_get(first, "kept") == "yes"


def test_zookeeper_elects_a_new_leader() -> None:
    with ZooKeeperEnsemble() as servers:
        first = servers.wait_leader()
        first.kill()
        servers.wait_leader(other_than=first, timeout=60)
        first.restart(wipe=True)
        assert first.mode() == "follower"


@pytest.mark.parametrize("kind", [RedisSentinel, EtcdCluster])
def test_a_whole_group_restarts(kind: type[Group[Process]]) -> None:
    with kind() as servers:
        addresses = servers.addresses
        servers.nodes[0].kill()
        servers.restart(wipe=True)
        assert servers.ping(LONG)
        assert servers.addresses == addresses


# The runner's end, and the command line.

RUNNER = """
import os, sys
from tests.servers import RedisServer, PostgresServer
redis, postgres = RedisServer().start(), PostgresServer().start()
print(redis.pid, postgres.pid, redis.home.path, postgres.home.path, flush=True)
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.stdin.readline()  # holds every inherited descriptor until the test ends
    sys.exit()
if sys.argv[1] == "exit":
    sys.exit()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("way", ["kill", "exit", "fork"])
def test_nothing_outlives_the_runner(way: str) -> None:
    with python("-c", RUNNER, way) as runner:
        assert runner.stdout is not None
        *pids, redis_home, postgres_home = runner.stdout.readline().split()
        runner.wait(60)
        wait_until(lambda: all(gone(int(pid)) for pid in pids), "the servers dying", 60)
        homes = [Path(redis_home), Path(postgres_home)]
        wait_until(lambda: not any(home.exists() for home in homes), "their homes removed", 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_says_where_and_cleans_up(number: signal.Signals) -> None:
    with python("-m", "tests.servers", "up", "redis", "redis-masters", "--json") as shell:
        assert shell.stdout is not None
        said = ""
        while not said.endswith("\n]\n"):
            said += shell.stdout.readline()
        servers = json.loads(said)
        assert [server["kind"] for server in servers] == ["redis", "redis-masters"]
        with socket.create_connection((HOST, servers[0]["processes"][0]["port"]), 1.0) as link:
            link.sendall(b"PING\r\n")
            assert link.recv(16) == b"+PONG\r\n"
        os.kill(shell.pid, number)
        assert shell.wait(60) == 0
    for server in servers:
        assert not Path(server["directory"]).exists()
        assert all(gone(process["pid"]) for process in server["processes"])


def test_check_prints_a_row_for_each_kind() -> None:
    with python("-m", "tests.servers", "check", "redis", "redis-masters") as shell:
        said, _ = shell.communicate(timeout=60)
        assert shell.returncode == 0
    rows = [line.split() for line in said.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [("redis", "ok"), ("redis-masters", "ok")]


# Installing, with an apt-get that only pretends.

FAKE_APT = """#!/bin/sh
echo "begin $*" >> {0}/said
{0}/policy-rc.d; echo "policy $?" >> {0}/said
case "$*" in
    *update*) touch {0}/updated ;;
    *) test -e {0}/updated && touch {0}/installed ;;
esac
status=$?
echo "end" >> {0}/said
exit $status
"""


@pytest.fixture
def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of the system, and the family "fake" that is not installed."""
    apt = tmp_path / "apt-get"
    apt.write_text(FAKE_APT.format(tmp_path))
    apt.chmod(0o755)
    script = install._SCRIPT
    for system in ("/usr/sbin/policy-rc.d", "/run/holdfast-install.lock"):
        assert system in script
        script = script.replace(system, str(tmp_path / Path(system).name))
    monkeypatch.setattr(install, "_SCRIPT", script)
    monkeypatch.setattr(install, "_root_prefix", list)
    monkeypatch.setattr(install, "_failed", {})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    proof = str(tmp_path / "installed")
    monkeypatch.setitem(install.FAMILIES, "fake", install.Family(("fake-package",), (proof,)))
    return tmp_path


def test_install_updates_once_and_starts_no_service(fake_apt: Path) -> None:
    install.ensure("fake")
    lines = (fake_apt / "said").read_text().splitlines()
    begun = [line.split()[3] for line in lines if line.startswith("begin")]
    assert begun == ["install", "update", "install"]
    assert lines.count("policy 101") == 3
    assert not (fake_apt / "policy-rc.d").exists()
    install.ensure("fake")
    assert (fake_apt / "said").read_text().splitlines() == lines, "nothing was missing any more"


def test_install_keeps_a_policy_that_is_not_ours(fake_apt: Path) -> None:
    policy = fake_apt / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o755)
    install.ensure("fake")
    assert policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_two_installs_at_once_take_turns(fake_apt: Path) -> None:
    threads = [threading.Thread(target=install.ensure, args=("fake",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (fake_apt / "said").read_text().splitlines()
    kinds = [line.split()[0] for line in lines]
    assert kinds == ["begin", "policy", "end"] * (len(kinds) // 3)
    assert {line for line in lines if line.startswith("policy")} == {"policy 101"}


def test_failed_install_shows_what_apt_said_and_is_not_tried_again(fake_apt: Path) -> None:
    (fake_apt / "apt-get").write_text(
        "#!/bin/sh\necho run >> $0.runs; echo no such thing; exit 1\n"
    )
    for _ in range(2):
        with pytest.raises(InstallError, match=r"apt-get install fake-package\nno such thing"):
            install.ensure("fake")
    assert (fake_apt / "apt-get.runs").read_text().count("run") == 2  # install, update


def test_without_root_the_error_says_what_to_install(
    fake_apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "_root_prefix", lambda: None)
    with pytest.raises(InstallError, match=r"^not root .* apt-get install fake-package$"):
        install.ensure("fake")


def test_home_is_private() -> None:
    home = Home("private")
    try:
        assert home.path.stat().st_mode & 0o066 == 0
    finally:
        home.close()
