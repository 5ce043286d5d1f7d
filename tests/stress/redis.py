"""A redis-server that suffers: `python -m tests.stress redis`. Partner: `store.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.servers import RedisServer
from tests.stress.record import now
from tests.stress.store import Served

__all__ = ["MEMORY", "RedisStore", "about_locks"]

MEMORY = 2.0
"""Seconds for which Redis remembers a free lock's token here: then nothing at all is left."""


def about_locks(frame: bytes) -> bool:
    return b"\r\nEVAL" in frame[:24]


class RedisStore(Served):
    """It keeps what it has acknowledged: it is killed and comes back with its append-only file."""

    name = "redis"
    framing = "resp"

    def __init__(self, seed: int, calm: float) -> None:
        self._server = RedisServer(persist=True).start()
        super().__init__(seed, calm, self._server)
        self.url = f"redis://127.0.0.1:{self.proxy.port}/0?fence_memory={MEMORY}"
        self.faults = {"script flushes": self._flush, **self.faults}

    def about_locks(self, frame: bytes) -> bool:
        return about_locks(frame)

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """Every key expires by itself."""
        deadline = now() + patience + MEMORY
        while (keys := self._server.call("KEYS", f"*{{{prefix}*")) and now() < deadline:
            time.sleep(0.1)
        assert isinstance(keys, list)
        for key in keys:
            yield f"the key {key}, for {self._server.call('PTTL', str(key))} ms"

    def figures(self) -> dict[str, object]:
        info = self._server.info("stats")
        clients = self._server.info("clients")
        return {
            "server": f"redis-server {RedisServer.version()}",
            "commands since its last start": int(info["total_commands_processed"]),
            "connections now": int(clients["connected_clients"]) - 1,
        }

    def _flush(self) -> None:
        self._server.call("SCRIPT", "FLUSH")
