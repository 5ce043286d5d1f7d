"""The stress run on three members of etcd that are stopped, killed and started meanwhile.

    python -m tests.stress.etcd --holds 50000 --seconds 1500

The clients are those of `python -m tests.stress`, with all of their own faults. Leases that a
stalled leader revokes although they are kept alive (etcd before 3.4.31 and 3.5.13 does) show as
overlaps of unfenced holds: they are counted, and are no failure
of the client, as long as no stale write was accepted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
from collections import Counter

from tests.servers import EtcdCluster

LONGEST = 2.0


class Faults(threading.Thread):
    """Does something to one member at a time, and waits until all are well again."""

    def __init__(self, cluster: EtcdCluster, seed: int, calm: float) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._random = random.Random(seed)
        self._calm = calm
        self.did: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        chance = self._random.random
        while not self.over.wait(self._calm * (0.5 + chance())):
            leader = self._cluster.leader()
            if leader is None:
                continue
            others = [node for node in self._cluster.nodes if node is not leader]
            node, who = (leader, "leader") if chance() < 0.5 else (others[0], "follower")
            if chance() < 0.6:
                self.did[f"{who} stopped"] += 1
                node.pause()
                self.over.wait(LONGEST * chance())
                node.resume()
            else:
                self.did[f"{who} killed"] += 1
                node.kill()
                self.over.wait(LONGEST * chance())
                node.start()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.etcd", description=__doc__)
    parser.add_argument("--holds", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--calm", type=float, default=4.0, help="seconds between members' faults")
    asked, further = parser.parse_known_args()
    with EtcdCluster() as cluster:
        cluster.wait_leader()
        faults = Faults(cluster, asked.seed, asked.calm)
        faults.start()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "tests.stress", cluster.url, "--json",
                 "--holds", str(asked.holds), "--seconds", str(asked.seconds),
                 "--seed", str(asked.seed), *further],
                stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        finally:
            faults.over.set()
            faults.join()
    result = json.loads(ended.stdout)
    result["members"] = dict(faults.did)
    result["kinds"] = dict(Counter(one["kind"] for one in result["violations"]))
    print(json.dumps(result, indent=2))
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
