"""A store of the stress run's own, and what is done to it: `python -m tests.stress redis`.

Contract: what the faults do is what TCP and a crash do. Bytes are late, or the connection ends;
nothing is lost in the middle of a connection that goes on, so a fault that swallows frames ends
with a reset of everybody. The server is killed and comes back with what it has acknowledged. Each
fault's time is a stop, in which nobody can be served.
Partners: `crew.py`, which does things to the clients; `redis.py` and `zookeeper.py`, the stores.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import ClassVar

from holdfast.testing import FaultProxy
from tests.servers import RedisServer, ZooKeeperServer, reaper
from tests.stress.check import Span
from tests.stress.record import now

__all__ = ["Store"]

SHORT, LONG = 0.02, 1.5
"""Seconds of a fault."""

Fault = Callable[[], Callable[[], None] | None]
"""Begins; and what ends it, if it lasts."""


class Store:
    """A server behind a proxy."""

    name: ClassVar[str]
    framing: ClassVar[str]
    url: str

    def __init__(self, seed: int, calm: float, server: RedisServer | ZooKeeperServer) -> None:
        self.random = random.Random(f"store {seed}")
        self._calm = calm
        self._process = server
        self.proxy = FaultProxy(("127.0.0.1", server.port), framing=self.framing)
        self.did: Counter[str] = Counter()
        self.stops: list[Span] = []
        self._next = now() + 2.0
        self._begun = 0.0
        self._ends = math.inf
        self._end: Callable[[], None] = self.proxy.heal
        self.faults: dict[str, Fault] = {
            "resets": self.proxy.reset,
            "resets in a reply": self._half_a_reply,
            "resets in a request": self._half_a_request,
            "cuts": self._cut,
            "silences": self._silence,
            "one-way cuts": self._one_way,
            "delays": self._delay,
            "split frames": self._split,
            "stalls": self._stall,
            "server pauses": self._pause,
            "server kills": self.kill,
        }

    def about_locks(self, frame: bytes) -> bool:
        """Whether this request is about a claim."""
        raise NotImplementedError

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """What should not be in the store any more after so many seconds."""
        raise NotImplementedError

    def figures(self) -> dict[str, object]:
        """About the server."""
        raise NotImplementedError

    def pids(self) -> set[int]:
        """Of the processes that serve it."""
        return {self._process.pid, reaper.pid()}

    def advance(self) -> None:
        """Begin or end what is due."""
        moment = now()
        if moment >= self._ends:
            self._over()
        elif self._ends == math.inf and moment >= self._next:
            self._next = moment + min(5.0, self.random.expovariate(1 / self._calm))
            what = self.random.choice(list(self.faults))
            self.did[what] += 1
            self._begun = moment
            end = self.faults[what]()
            if end is not None:
                self._end = end
                length = math.exp(self.random.uniform(math.log(SHORT), math.log(LONG)))
                self._ends = now() + length
            else:
                self.stops.append((moment, now()))

    def heal(self) -> None:
        if self._ends < math.inf:
            self._over()
        self.proxy.heal()

    def _over(self) -> None:
        self._end()
        self.stops.append((self._begun, now()))
        self._ends = math.inf

    def close(self) -> None:
        self.proxy.close()
        self._process.stop()

    # -- faults: what ends them, if they last -----------------------------------------------------

    def _half_a_reply(self) -> None:
        self.proxy.reset_on_reply(after=self.random.randint(0, 3), to=self.about_locks)

    def _half_a_request(self) -> None:
        self.proxy.reset_on_request(after=self.random.randint(0, 300), matching=self.about_locks)

    def _cut(self) -> Callable[[], None]:
        return self.proxy.sever().undo

    def _silence(self) -> Callable[[], None]:
        return self._then_reset(self.proxy.blackhole().undo)

    def _one_way(self) -> Callable[[], None]:
        return self._then_reset(self.proxy.one_way("to_client").undo)

    def _then_reset(self, undo: Callable[[], None]) -> Callable[[], None]:
        def end() -> None:
            self.proxy.reset()
            undo()

        return end

    def _delay(self) -> Callable[[], None]:
        return self.proxy.delay(self.random.uniform(0.005, 0.2)).undo

    def _split(self) -> Callable[[], None]:
        return self.proxy.split(self.random.randint(2, 40)).undo

    def _stall(self) -> Callable[[], None]:
        return self.proxy.hold("both").undo

    def _pause(self) -> Callable[[], None]:
        self._process.pause()
        return self._process.resume

    def kill(self) -> None:
        self._process.kill()
        self._process.restart()
