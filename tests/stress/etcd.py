"""Three members of etcd, each behind a proxy: `python -m tests.stress etcd`.

Contract: as in `store.py`. Members are stopped and killed one at a time, so that a majority is
there; what was acknowledged is kept.

Hazard: etcd before 3.4.31 and 3.5.13 has a leader that stood still revoke leases that its successor
keeps alive. Then two clients believe to hold, until the first is told; tokens still order them. So
overlaps after a leader was stopped are counted and no failure, if the members are that old.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator

from holdfast.testing import FaultProxy
from tests.servers import EtcdCluster, EtcdServer, reaper
from tests.stress.record import now
from tests.stress.store import Store, behind_a_proxy

__all__ = ["EtcdStore"]

MENDED = {(3, 4): 31, (3, 5): 13}


class EtcdStore(Store):
    name = "etcd"

    def __init__(self, seed: int, calm: float) -> None:
        self._cluster = EtcdCluster().start()
        self._cluster.wait_leader()
        self._proxies = [
            FaultProxy(("127.0.0.1", node.port), framing="http2") for node in self._cluster.nodes
        ]
        self.url = "etcd://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies)
        super().__init__(seed, calm)
        on_the_way = behind_a_proxy(lambda: self.random.choice(self._proxies), self.random)
        del on_the_way["cuts"]  # from one of three: a client goes to another at once
        self.faults = {
            "leader stopped": lambda: self._stop(self._leader()),
            "leader killed": lambda: self._kill(self._leader()),
            "follower stopped": lambda: self._stop(self._follower()),
            "follower killed": lambda: self._kill(self._follower()),
            **on_the_way,
        }

    @property
    def excused(self) -> tuple[str, ...]:
        major, minor, patch = (int(part) for part in EtcdServer.version().split(".")[:3])
        return ("leader stopped",) if patch < MENDED.get((major, minor), 0) else ()

    def pids(self) -> set[int]:
        return {reaper.pid(), *(node.pid for node in self._cluster.nodes if node.alive)}

    def heal(self) -> None:
        super().heal()
        for proxy in self._proxies:
            proxy.heal()
        self._cluster.wait_leader()

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """Keys and tombstones are gone when their leases are."""
        deadline = now() + patience + 2
        while (keys := self._keys()) and now() < deadline:
            time.sleep(0.1)
        yield from (f"the key {key}" for key in keys)

    def _keys(self) -> list[str]:
        zero = base64.b64encode(b"\0").decode()
        found = self._cluster.wait_leader().api(
            "/v3/kv/range", {"key": zero, "range_end": zero, "keys_only": True}
        )
        return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", [])]

    def figures(self) -> dict[str, object]:
        leader = self._cluster.wait_leader()
        leases = leader.api("/v3/lease/leases").get("leases", [])
        return {"server": f"etcd {EtcdServer.version()}, three members", "leases now": len(leases)}

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._cluster.stop()

    # -- faults -----------------------------------------------------------------------------------

    def _leader(self) -> EtcdServer:
        return self._cluster.wait_leader()

    def _follower(self) -> EtcdServer:
        leader = self._leader()
        return self.random.choice([node for node in self._cluster.nodes if node is not leader])

    def _stop(self, node: EtcdServer) -> Callable[[], None]:
        node.pause()
        return node.resume

    def _kill(self, node: EtcdServer) -> Callable[[], None]:
        node.kill()

        def start() -> None:
            node.start()

        return start
