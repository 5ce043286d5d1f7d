"""The servers of a run: started when the first target names one, placed on a core, ended with it.

Contract: parent's side only. `{redis}` in a target is `host:port` of the run's own redis-server,
`{redis-masters}` are those of five masters, `{zookeeper}`, `{etcd}`, `{postgres}` and `{mariadb}`
are those of its others, `{etcd-cluster}` those of three members of another etcd: nobody else's data
is touched, and they can be pinned, without which figures over a network are a mixture
(docs/how-to/benchmark.md). How servers are installed, started and surely ended is `tests/servers`'
business. Partner: `bench/meter.py` asks such a server what it had to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers import Process, Server

__all__ = ["Served", "Servers"]

PLACEHOLDERS = (
    "redis", "redis-masters", "zookeeper", "etcd", "etcd-cluster", "postgres", "mariadb",
)  # fmt: skip
WITH_BOOKS = ("redis", "redis-masters", "zookeeper", "etcd", "etcd-cluster")
"""Databases keep none that could be read without their client."""
CONNECTIONS = {
    "postgres": {"max_connections": "2000"},
    "mariadb": {"max-connections": "2000"},
}
"""Each of many waiters has one, of everybody who takes part."""


class Served:
    """One running server, or several that are one store."""

    def __init__(self, kind: str, server: Server, processes: Sequence[Process]) -> None:
        self.kind, self.processes = kind, processes
        self.address = ",".join(f"{host}:{port}" for host, port in server.addresses)
        self.books = f"{kind}://{self.address}" if kind in WITH_BOOKS else None
        self.version = f"{kind}-server {server.version()}"

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    def place(self, core: int) -> None:
        """All their threads and children; those to come inherit it."""
        family = [process.pid for process in self.processes]
        for pid in family:
            with contextlib.suppress(OSError):  # it has ended
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), {core})
                    with open(f"/proc/{pid}/task/{thread}/children") as children:
                        family += map(int, children.read().split())


class Servers:
    """At most one of each kind; `with` ends them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[str, Served] = {}

    def named_in(self, target: str) -> Served | None:
        """The server that a target's placeholder means; it runs when this returns."""
        for kind in PLACEHOLDERS:
            if f"{{{kind}}}" in target:
                return self._running.get(kind) or self._start(kind)
        return None

    def _start(self, kind: str) -> Served:
        from tests.servers import KINDS  # takes longer to import than a run may need

        server = KINDS[kind](**({"settings": CONNECTIONS[kind]} if kind in CONNECTIONS else {}))
        self._stack.enter_context(server)
        self._running[kind] = Served(kind, server, server.processes)
        return self._running[kind]

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
