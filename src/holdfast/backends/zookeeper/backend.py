"""`zk://`, as a backend: what it promises.

Contract: `core/backend.py`. Opening contacts nobody. Partners: `url.py`, what a URL means;
`taking.py`, where to begin reading; `naming.py`, what nodes are called; `session.py`, how long they
live; `wire.py`, kazoo.
"""

from __future__ import annotations

from holdfast.backends.url import Url
from holdfast.backends.zookeeper.cells import Cells
from holdfast.backends.zookeeper.ending import Ending
from holdfast.backends.zookeeper.overview import Overview
from holdfast.backends.zookeeper.renewal import Renewal
from holdfast.backends.zookeeper.taking import Taking
from holdfast.backends.zookeeper.url import OPTIONS, place_of
from holdfast.types import Capabilities, Mode

__all__ = ["ZooKeeperBackend"]


class ZooKeeperBackend(Taking, Ending, Renewal, Overview, Cells):
    """`zk://[user:password@]host[:port],.../path`: locks are the children of `/path`."""

    options = OPTIONS
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="session",
        failover="nothing that a quorum has acknowledged",
    )

    @classmethod
    def from_url(cls, url: Url) -> ZooKeeperBackend:
        place, base, containers = place_of(url)
        return cls(place, str(url), base, containers)
