"""Five masters, each behind a proxy: `python -m tests.stress redlock`. Partner: `store.py`.

The nodes keep nothing on disk, so that one that is killed has forgotten its votes, and sits out its
quarantine: never more than two at a time, so that a majority can vote. What happens on the way may
strike any of them, or all. No fault excuses an overlap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from holdfast.testing import FaultProxy
from tests.servers import RedisMasters, RedisServer, reaper
from tests.stress.actor import LONGEST
from tests.stress.record import now
from tests.stress.redis import MEMORY, about_locks
from tests.stress.store import End, Store, behind_a_proxy

__all__ = ["RedlockStore"]

NODES, MINORITY = 5, 2
QUARANTINE = LONGEST * 1.01 + 2.0
"""Seconds until a new node counts: its uptime is in whole seconds."""


class RedlockStore(Store):
    name = "redlock"

    def __init__(self, seed: int, calm: float) -> None:
        self._masters = RedisMasters(count=NODES).start()
        self._forgetful: dict[RedisServer, float] = {}  # who restarted, and until when that counts
        self._proxies = [
            FaultProxy(("127.0.0.1", node.port), framing="resp") for node in self._masters.nodes
        ]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies)
        # A busy machine is not to be taken for broken nodes.
        self.url = (
            f"redlock://{hosts}?fence_memory={MEMORY}&max_ttl={LONGEST}&node_timeout=0.3&poll=0.05"
        )
        time.sleep(QUARANTINE)  # they are new
        super().__init__(seed, calm)
        self.faults = {
            **behind_a_proxy(self._proxy, self.random),
            "cuts of all": self._cut_all,
            "resets in a reply": self._half_a_reply,
            "resets in a request": self._half_a_request,
            "script flushes": self._flush,
            "pauses of one": lambda: self._pause(1),
            "pauses of two": lambda: self._pause(2),
            "kills of one": lambda: self._kill(1),
            "kills of two": lambda: self._kill(2),
        }

    def pids(self) -> set[int]:
        return {reaper.pid(), *(node.pid for node in self._masters.nodes if node.alive)}

    def heal(self) -> None:
        super().heal()
        for proxy in self._proxies:
            proxy.heal()

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """Every key expires by itself."""
        deadline = now() + patience + MEMORY + LONGEST
        for node in self._masters.nodes:
            while (keys := node.call("KEYS", f"*{{{prefix}*")) and now() < deadline:
                time.sleep(0.1)
            assert isinstance(keys, list)
            for key in keys:
                yield f"the key {key}, for {node.call('PTTL', str(key))} ms"

    def figures(self) -> dict[str, object]:
        nodes = self._masters.nodes
        clients = [int(node.info("clients")["connected_clients"]) - 1 for node in nodes]
        return {
            "server": f"redis-server {RedisServer.version()}, {NODES} masters",
            "connections now": clients,
        }

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._masters.stop()

    # -- faults -----------------------------------------------------------------------------------

    def _proxy(self) -> FaultProxy:
        return self.random.choice(self._proxies)

    def _cut_all(self) -> End:
        cuts = [proxy.sever() for proxy in self._proxies]

        def end() -> None:
            for cut in cuts:
                cut.undo()

        return end

    def _half_a_reply(self) -> None:
        self._proxy().reset_on_reply(after=self.random.randint(0, 3), to=about_locks)

    def _half_a_request(self) -> None:
        self._proxy().reset_on_request(after=self.random.randint(0, 300), matching=about_locks)

    def _flush(self) -> None:
        self.random.choice(self._masters.nodes).call("SCRIPT", "FLUSH")

    def _pause(self, count: int) -> End:
        nodes = self.random.sample(self._masters.nodes, count)
        for node in nodes:
            node.pause()

        def end() -> None:
            for node in nodes:
                node.resume()

        return end

    def _kill(self, count: int) -> End | None:
        """Restarted at the end; those that are quarantined already may be killed again."""
        moment = now()
        sick = [node for node, until in self._forgetful.items() if until > moment]
        nodes = self.random.sample(self._masters.nodes, count)
        if len({*sick, *nodes}) > MINORITY:
            nodes = sick[:count]
        if not nodes:
            return None
        for node in nodes:
            node.kill()

        def end() -> None:
            for node in nodes:
                node.restart()
                self._forgetful[node] = now() + QUARANTINE

        return end
