"""Redis Cluster: masters and replicas that share the slots.

Contract: started means cluster_state:ok on every node and every replica in step. A node keeps its
place in the cluster over a restart, also one that wipes its data. Nodes are patient, for on a busy
machine a healthy one may be silent for a second; inside `with servers.eager():` one that is ended
is soon replaced. Partner: `redis.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.base import Group, ServerError, wait_until
from tests.servers.home import HOST, Home
from tests.servers.redis import RedisServer

SLOTS = 16384
PATIENT, EAGER = 20_000, 1000
"""Milliseconds of silence after which a node counts as down."""


class RedisCluster(Group[RedisServer]):
    """Masters first in `nodes`, then as many replicas: node n+3 follows node n."""

    kind = "redis-cluster"
    families = RedisServer.families
    version_command = RedisServer.version_command

    def __init__(self, *, masters: int = 3, persist: bool = False) -> None:
        self.home = Home(self.kind)
        self._masters = masters
        self._bus = [self.home.reserve_port() for _ in range(2 * masters)]
        self.nodes = [
            RedisServer(self.home, f"redis-{n}", persist=persist, settings=_settings(bus))
            for n, bus in enumerate(self._bus)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def owner_of(self, key: str) -> RedisServer:
        """The master that serves this key now, as the first node that answers sees it."""
        asked = next(node for node in self.nodes if node.ping())
        slot = asked.call("CLUSTER", "KEYSLOT", key)
        ranges = asked.call("CLUSTER", "SLOTS")
        assert isinstance(slot, int)
        assert isinstance(ranges, list)
        for first, last, owner, *_ in (entry for entry in ranges if isinstance(entry, list)):
            assert isinstance(owner, list)
            if int(str(first)) <= slot <= int(str(last)):
                return next(node for node in self.nodes if node.port == owner[1])
        raise ServerError(f"nobody serves slot {slot}")

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Nodes that do not answer are replaced soon."""
        self._be(EAGER)
        yield
        self._be(PATIENT)

    def _be(self, milliseconds: int) -> None:
        for node in self.nodes:
            if node.ping():
                node.call("CONFIG", "SET", "cluster-node-timeout", milliseconds)

    def wait_ok(self, timeout: float = 60.0) -> None:
        """Wait until every node that answers calls the cluster ok."""
        wait_until(
            lambda: all("cluster_state:ok" in _info(node) for node in self.nodes if node.ping()),
            "cluster_state:ok on every node",
            timeout,
        )

    def _launch_all(self, *, wipe: bool) -> None:
        super()._launch_all(wipe=wipe)
        if not self._formed():
            self._form()
        self.wait_ok(30)
        wait_until(
            lambda: all(node.is_master() or node.linked() for node in self.nodes),
            "cluster replicas following their masters",
            30,
        )

    def _formed(self) -> bool:
        return all("cluster_known_nodes:1\r" not in _info(node) for node in self.nodes)

    def _form(self) -> None:
        """What `redis-cli --cluster create` does, without its pauses of a second."""
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for n, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, node in enumerate(masters):
            first, beyond = (SLOTS * at // len(masters) for at in (n, n + 1))
            node.call("CLUSTER", "ADDSLOTSRANGE", first, beyond - 1)
        for node, bus in zip(self.nodes[1:], self._bus[1:], strict=True):
            self.nodes[0].call("CLUSTER", "MEET", HOST, node.port, bus)
        known = f"cluster_known_nodes:{len(self.nodes)}\r"
        wait_until(
            lambda: all(known in _info(node) for node in self.nodes),
            "cluster nodes meeting",
            30,
        )
        for node, master in zip(replicas, masters, strict=True):
            node.call("CLUSTER", "REPLICATE", str(master.call("CLUSTER", "MYID")))


def _settings(bus: int) -> dict[str, str]:
    return {
        "cluster-enabled": "yes",
        "cluster-port": str(bus),  # the usual port + 10000 may be somebody's
        "cluster-node-timeout": str(PATIENT),
        "cluster-config-file": "../nodes.conf",  # outside the data: see the contract
        "cluster-allow-replica-migration": "no",
        "cluster-replica-validity-factor": "0",
        "cluster-require-full-coverage": "no",  # a master that is away takes no other one with it
    }


def _info(node: RedisServer) -> str:
    return str(node.call("CLUSTER", "INFO"))
