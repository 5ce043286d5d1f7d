"""Stores of the stress run's own, and what is done to them: `python -m tests.stress redis`.

Contract: one fault at a time, at random moments. What the faults do is what TCP and a crash do.
Bytes are late, or the connection ends; nothing is lost in the middle of a connection that goes on,
so a fault that swallows frames ends with a reset of everybody. A server is killed and comes back
with what it has acknowledged. Each fault's time is a stop, in which nobody can be served.
Partners: `crew.py`, which does things to the clients; `redis.py`, `zookeeper.py`, `etcd.py`,
`sql.py`, the stores.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from holdfast.testing import FaultProxy
from tests.servers import reaper
from tests.servers.base import Process
from tests.stress.check import Span, Violation
from tests.stress.record import now

__all__ = ["End", "Fault", "Served", "Store", "behind_a_proxy"]

SHORT, LONG = 0.02, 1.5
"""Seconds of a fault."""

End = Callable[[], None]
Fault = Callable[[], End | None]
"""Begins it; what ends it, if it lasts."""


class Store(ABC):
    """Servers, what is done to them at random moments, and when it was."""

    name: ClassVar[str]
    url: str

    def __init__(self, seed: int, calm: float) -> None:
        self.random = random.Random(f"store {seed}")
        self._calm = calm
        self.faults: dict[str, Fault] = {}
        self.did: Counter[str] = Counter()
        self.stops: list[Span] = []
        self._names: list[str] = []  # of the stops
        self._next = now() + 2.0
        self._ends = math.inf
        self._end: End = lambda: None

    @property
    def excused(self) -> tuple[str, ...]:
        """Faults in whose wake the store itself may give a lock to two."""
        return ()

    @abstractmethod
    def pids(self) -> set[int]:
        """Of the processes that serve it."""

    @abstractmethod
    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """What should not be in the store any more after so many seconds."""

    @abstractmethod
    def figures(self) -> dict[str, object]:
        """About the server."""

    @abstractmethod
    def close(self) -> None: ...

    def advance(self) -> None:
        """Begin or end what is due."""
        moment = now()
        if moment >= self._ends:
            self._over()
        elif self._ends == math.inf and moment >= self._next:
            self._next = moment + min(5.0, self.random.expovariate(1 / self._calm))
            what = self.random.choice(list(self.faults))
            end = self.faults[what]()
            self.did[what] += 1
            self._names.append(what)
            self.stops.append((moment, now()))
            if end is not None:
                self._end = end
                length = math.exp(self.random.uniform(math.log(SHORT), math.log(LONG)))
                self._ends = now() + length
                self.stops[-1] = moment, math.inf

    def heal(self) -> None:
        if self._ends < math.inf:
            self._over()

    def _over(self) -> None:
        self._end()
        self.stops[-1] = self.stops[-1][0], now()
        self._ends = math.inf

    def excuse(self, found: list[Violation], wake: float) -> tuple[list[Violation], Counter[str]]:
        """What is left of these without the overlaps that the store's own faults explain; and how
        many overlaps there were, by the fault that was under way, or the last one before."""
        left: list[Violation] = []
        overlaps: Counter[str] = Counter()
        for violation in found:
            if violation.at is None:
                left.append(violation)
                continue
            what, since = self._before(violation.at)
            overlaps[f"{violation.kind}: {what}"] += 1
            # A fault may be covered up by a later one.
            excused = any(
                name in self.excused and begun <= violation.at <= ended + wake
                for name, (begun, ended) in zip(self._names, self.stops, strict=True)
            )
            if not excused:
                left.append(
                    violation._replace(text=f"{since:.2f} s after {what}: {violation.text}")
                )
        return left, overlaps

    def _before(self, at: float) -> tuple[str, float]:
        """The last fault that began before, and how long it had been over."""
        latest = ("nothing was done", math.inf)
        for name, (begun, ended) in zip(self._names, self.stops, strict=True):
            if begun <= at:
                latest = name, max(0.0, at - ended)
        return latest


def behind_a_proxy(proxy: Callable[[], FaultProxy], dice: random.Random) -> dict[str, Fault]:
    """What can happen on the way to a server, behind this proxy or one of several."""

    def then_reset(one: FaultProxy, undo: End) -> End:
        def end() -> None:
            one.reset()
            undo()

        return end

    def silence() -> End:
        one = proxy()
        return then_reset(one, one.blackhole().undo)

    def one_way() -> End:
        one = proxy()
        return then_reset(one, one.one_way("to_client").undo)

    return {
        "resets": lambda: proxy().reset(),
        "cuts": lambda: proxy().sever().undo,
        "silences": silence,
        "one-way cuts": one_way,
        "delays": lambda: proxy().delay(dice.uniform(0.005, 0.2)).undo,
        "split frames": lambda: proxy().split(dice.randint(2, 40)).undo,
        "stalls": lambda: proxy().hold("both").undo,
    }


class Served(Store):
    """One server behind a proxy."""

    framing: ClassVar[str]

    def __init__(self, seed: int, calm: float, server: Process) -> None:
        super().__init__(seed, calm)
        self._process = server
        self.proxy = FaultProxy(("127.0.0.1", server.port), framing=self.framing)
        self.faults = {
            **behind_a_proxy(lambda: self.proxy, self.random),
            "resets in a reply": self._half_a_reply,
            "resets in a request": self._half_a_request,
            "server pauses": self._pause,
            "server kills": self.kill,
        }

    @abstractmethod
    def about_locks(self, frame: bytes) -> bool:
        """Whether this request is about a claim."""

    def pids(self) -> set[int]:
        return {self._process.pid, reaper.pid()}

    def heal(self) -> None:
        super().heal()
        self.proxy.heal()

    def close(self) -> None:
        self.proxy.close()
        self._process.stop()

    def _half_a_reply(self) -> None:
        self.proxy.reset_on_reply(after=self.random.randint(0, 3), to=self.about_locks)

    def _half_a_request(self) -> None:
        self.proxy.reset_on_request(after=self.random.randint(0, 300), matching=self.about_locks)

    def _pause(self) -> End:
        self._process.pause()
        return self._process.resume

    def kill(self) -> None:
        before = _children()
        self._process.kill()
        # A database's processes die with it, and are ours then.
        for pid in _children() - before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._process.restart()


def _children() -> set[int]:
    """Of this process: its own, and those it adopted."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in pids.split()}
