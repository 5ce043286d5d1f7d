"""A store of the stress run's own, and what is done to it: `python -m tests.stress redis`.

Contract: what the faults do is what TCP and a crash do. Bytes are late, or the connection ends;
nothing is lost in the middle of a connection that goes on, so a fault that swallows frames ends
with a reset of everybody. The server is killed and comes back with its append-only file: it keeps
what it has acknowledged. Each fault's time is a stop, in which nobody can be served.
Partner: `crew.py`, which does things to the clients.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from holdfast.testing import FaultProxy
from tests.servers import RedisServer, reaper
from tests.stress.check import Span
from tests.stress.record import now

__all__ = ["LONG", "MEMORY", "SHORT", "RedisStore", "about_locks"]

SHORT, LONG = 0.02, 1.5
"""Seconds of a fault."""
MEMORY = 2.0
"""Seconds for which Redis remembers a free lock's token here: then nothing at all is left."""


def about_locks(frame: bytes) -> bool:
    return b"\r\nEVAL" in frame[:24]


class RedisStore:
    """A redis-server behind a proxy."""

    name = "redis"

    def __init__(self, seed: int, calm: float) -> None:
        self._random = random.Random(f"store {seed}")
        self._calm = calm
        self._server = RedisServer(persist=True).start()
        self._proxy = FaultProxy(("127.0.0.1", self._server.port), framing="resp")
        self.url = f"redis://127.0.0.1:{self._proxy.port}/0?fence_memory={MEMORY}"
        self.did: Counter[str] = Counter()
        self.stops: list[Span] = []
        self._next = now() + 2.0
        self._begun = 0.0
        self._ends = math.inf
        self._end: Callable[[], None] = self._proxy.heal
        self._faults: dict[str, Callable[[], Callable[[], None] | None]] = {
            "script flushes": self._flush,
            "resets": self._proxy.reset,
            "resets in a reply": self._half_a_reply,
            "resets in a request": self._half_a_request,
            "cuts": self._cut,
            "silences": self._silence,
            "one-way cuts": self._one_way,
            "delays": self._delay,
            "split frames": self._split,
            "stalls": self._stall,
            "server pauses": self._pause,
            "server kills": self._kill,
        }

    def pids(self) -> set[int]:
        """Of the processes that serve it."""
        return {self._server.pid, reaper.pid()}

    def advance(self) -> None:
        """Begin or end what is due."""
        moment = now()
        if moment >= self._ends:
            self._over()
        elif self._ends == math.inf and moment >= self._next:
            self._next = moment + min(5.0, self._random.expovariate(1 / self._calm))
            what = self._random.choice(list(self._faults))
            self.did[what] += 1
            self._begun = moment
            end = self._faults[what]()
            if end is not None:
                self._end = end
                length = math.exp(self._random.uniform(math.log(SHORT), math.log(LONG)))
                self._ends = now() + length
            else:
                self.stops.append((moment, now()))

    def heal(self) -> None:
        if self._ends < math.inf:
            self._over()
        self._proxy.heal()

    def _over(self) -> None:
        self._end()
        self.stops.append((self._begun, now()))
        self._ends = math.inf

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

    def close(self) -> None:
        self._proxy.close()
        self._server.stop()

    # -- faults: what ends them, if they last -----------------------------------------------------

    def _flush(self) -> None:
        self._server.call("SCRIPT", "FLUSH")

    def _half_a_reply(self) -> None:
        self._proxy.reset_on_reply(after=self._random.randint(0, 3), to=about_locks)

    def _half_a_request(self) -> None:
        self._proxy.reset_on_request(after=self._random.randint(0, 300), matching=about_locks)

    def _cut(self) -> Callable[[], None]:
        return self._proxy.sever().undo

    def _silence(self) -> Callable[[], None]:
        return self._then_reset(self._proxy.blackhole().undo)

    def _one_way(self) -> Callable[[], None]:
        return self._then_reset(self._proxy.one_way("to_client").undo)

    def _then_reset(self, undo: Callable[[], None]) -> Callable[[], None]:
        def end() -> None:
            self._proxy.reset()
            undo()

        return end

    def _delay(self) -> Callable[[], None]:
        return self._proxy.delay(self._random.uniform(0.005, 0.2)).undo

    def _split(self) -> Callable[[], None]:
        return self._proxy.split(self._random.randint(2, 40)).undo

    def _stall(self) -> Callable[[], None]:
        return self._proxy.hold("both").undo

    def _pause(self) -> Callable[[], None]:
        self._server.pause()
        return self._server.resume

    def _kill(self) -> None:
        self._server.kill()
        self._server.restart()
