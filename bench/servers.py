"""The servers of a run: started when the first target names one, placed on a core, ended with it.

Contract: parent's side only. `{redis}` in a target is `host:port` of the run's own redis-server,
`{redis-masters}` are those of five masters, `{zookeeper}` is that of its ZooKeeper, `{etcd}` of its
etcd, `{etcd-cluster}` those of three members of another: nobody else's data is touched, and it can
be pinned, without which figures over a network are a mixture (docs/how-to/benchmark.md). How
servers are installed, started and surely ended is `tests/servers`' business. Partner:
`bench/meter.py` asks such a server what it had to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers import Process, Server

__all__ = ["Served", "Servers"]

PLACEHOLDERS = ("redis", "redis-masters", "zookeeper", "etcd", "etcd-cluster")


class Served:
    """One running server, or several that are one store."""

    def __init__(self, kind: str, server: Server, processes: Sequence[Process]) -> None:
        self.kind, self.processes = kind, processes
        self.address = ",".join(f"{host}:{port}" for host, port in server.addresses)
        self.books = f"{kind}://{self.address}"
        self.version = f"{kind}-server {server.version()}"

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    def place(self, core: int) -> None:
        """All their threads; those to come inherit it."""
        for process in self.processes:
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread), {core})


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

        server = KINDS[kind]()
        self._stack.enter_context(server)
        self._running[kind] = Served(kind, server, server.processes)
        return self._running[kind]

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
