"""Redis Sentinel: a master, its replicas, and the sentinels that fail over between them.

Contract: started means that every sentinel knows the replicas and the other sentinels, and that the
replicas are in step. The sentinels are patient, since on a busy machine a healthy master may be
silent for a second; `with servers.failing_over() as master:` makes them quick, for as long as it
takes them to replace the master that the body ends. Partner: `redis.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from tests.servers.base import START_SECONDS, Group, Process, wait_for_other, wait_until
from tests.servers.home import HOST, Home
from tests.servers.redis import RedisServer

PATIENT, QUICK = 30_000, 500
"""Milliseconds of silence after which a master counts as down."""


class Sentinel(RedisServer):
    """One sentinel process: it watches, it holds no data."""

    def __init__(self, group: RedisSentinel, name: str, timings: dict[str, int]) -> None:
        super().__init__(group.home, name)
        self._group = group
        self._timings = timings

    def command(self) -> list[str]:
        return [*super().command(), "--sentinel"]

    def configure(self) -> None:
        conf = self.directory / "redis.conf"
        if not conf.exists():
            name = self._group.master_name
            master = self._group.master() or self._group.nodes[0]
            conf.write_text(
                f"port {self.port}\nbind {HOST}\ndir {self.data}\n"
                f"sentinel monitor {name} {HOST} {master.port} 2\n"
                + "".join(f"sentinel {key} {name} {ms}\n" for key, ms in self._timings.items())
            )

    def forget_data(self) -> None:
        super().forget_data()
        (self.directory / "redis.conf").unlink(missing_ok=True)

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        super().wait_ready(timeout)
        # Look and talk ten times as often as the built-in periods of 1 to 10 s. But leave
        # ping-period alone: a replica is fit for promotion only if it sent its INFO within five of
        # them, and once the master is down INFO is asked for every second. At 100 ms one failover
        # in four found "no-good-slave" and waited for the next try.
        self.call("SENTINEL", "DEBUG", "info-period", 200, "publish-period", 100)
        self.call("SENTINEL", "DEBUG", "ask-period", 100)

    def down_after(self, milliseconds: int) -> None:
        name = self._group.master_name
        self.call("SENTINEL", "SET", name, "down-after-milliseconds", milliseconds)

    def sees(self, replicas: int, sentinels: int) -> bool:
        reply = self.call("SENTINEL", "MASTER", self._group.master_name)
        assert isinstance(reply, list)
        state = dict(zip(reply[::2], reply[1::2], strict=True))
        return (
            state["flags"] == "master"
            and state["num-slaves"] == str(replicas)
            and state["num-other-sentinels"] == str(sentinels - 1)
        )


class RedisSentinel(Group[RedisServer]):
    """One master, two replicas, three sentinels with a quorum of two."""

    kind = "redis-sentinel"
    families = RedisServer.families
    version_command = RedisServer.version_command
    master_name: ClassVar[str] = "holdfast"

    def __init__(self, *, replicas: int = 2, sentinels: int = 3, persist: bool = False) -> None:
        self.home = Home(self.kind)
        first = RedisServer(self.home, "redis-0", persist=persist)
        follow = {"replicaof": f"{HOST} {first.port}"}
        self.nodes = [first] + [
            RedisServer(self.home, f"redis-{n}", persist=persist, settings=follow)
            for n in range(1, replicas + 1)
        ]
        timings = {"down-after-milliseconds": PATIENT, "failover-timeout": 2000}
        self.sentinels: list[Sentinel] = []
        for n in range(sentinels):
            self.sentinels.append(Sentinel(self, f"sentinel-{n}", timings))

    @property
    def processes(self) -> Sequence[Process]:
        return [*self.nodes, *self.sentinels]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The sentinels: clients ask them for the master."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://{hosts}/{self.master_name}/0"

    def master(self) -> RedisServer | None:
        """The node that most sentinels name and that agrees; None while there is none."""
        ports: list[int] = []
        for sentinel in self.sentinels:
            try:
                reply = sentinel.call(
                    "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master_name, timeout=1.0
                )
            except OSError:
                continue
            assert isinstance(reply, list)
            ports.append(int(str(reply[1])))
        for node in self.nodes:
            if ports.count(node.port) * 2 > len(self.sentinels) and node.is_master():
                return node
        return None

    @contextmanager
    def failing_over(self, timeout: float = 60.0) -> Iterator[RedisServer]:
        """The body ends the master that it is given; afterwards there is another one."""
        master = self.wait_master(timeout=timeout)
        for sentinel in self.sentinels:
            sentinel.down_after(QUICK)
        yield master
        self.wait_master(other_than=master, timeout=timeout)
        for sentinel in self.sentinels:
            sentinel.down_after(PATIENT)

    def wait_master(
        self, *, other_than: RedisServer | None = None, timeout: float = 60.0
    ) -> RedisServer:
        """Wait until there is a master, after a failover another one than before."""
        return wait_for_other(self.master, other_than, "a Redis master", timeout)

    def _launch_all(self, *, wipe: bool) -> None:
        if wipe:
            # The files say who was master when they were last rewritten: back to the first node.
            for process in self.processes:
                (process.directory / "redis.conf").unlink(missing_ok=True)
        super()._launch_all(wipe=wipe)
        counts = (len(self.nodes) - 1, len(self.sentinels))
        wait_until(
            lambda: all(sentinel.sees(*counts) for sentinel in self.sentinels),
            "sentinels finding each other and the replicas",
            30,
        )
        master = self.wait_master()
        wait_until(
            lambda: all(node.linked() for node in self.nodes if node is not master),
            "replicas following their master",
            30,
        )
