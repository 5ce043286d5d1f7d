"""The memory backend's strategy: its store behind a network that delays, holds and loses.

`broken+memory://NAME` is a memory backend whose every request goes through the network NAME, which
the strategy holds the other end of.
"""

from __future__ import annotations

import itertools
import time
from typing import Any
from weakref import WeakValueDictionary

import holdfast
from holdfast.backends.local import Link
from holdfast.backends.memory import MemoryBackend, Store
from holdfast.backends.url import Url
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.ports import clock
from tests.conformance.network import BrokenLink, Network, NetworkStrategy

_networks: WeakValueDictionary[str, MemoryNetwork] = WeakValueDictionary()
_numbers = itertools.count()


class MemoryNetwork(Network):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store(clock.now, time.time)


class BrokenMemoryBackend(MemoryBackend):
    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__(network.store)
        self._network = network

    @classmethod
    def from_url(cls, url: Url) -> BrokenMemoryBackend:
        return cls(_networks[url.host])

    def open(self, port: Port, signals: Signals) -> None:
        super().open(port, signals)
        self._link: Link = BrokenLink(self._network, port)


holdfast.register("broken+memory", f"{__name__}:BrokenMemoryBackend")


class MemoryStrategy(NetworkStrategy):
    name = "memory"
    short_ttl = 0.15  # nothing is slow here but the machine
    network: MemoryNetwork

    def url(self) -> str:
        name = f"n{next(_numbers)}"
        self.network = _networks[name] = MemoryNetwork()
        return f"broken+memory://{name}"

    @property
    def store(self) -> Any:  # the hooks below reach where no client may
        return self.network.store

    def restart_server(self) -> None:
        with self.store.mutex:
            for forgotten in (self.store._lines, self.store._tombstones, self.store._cells):
                forgotten.clear()
            self.store._last = 0

    def expire_now(self, name: str) -> None:
        with self.store.mutex:
            line = self.store._lines[name]
            for entry in line.holders.values():
                entry.expires = clock.now()
            line.next_expiry = clock.now()

    def steal(self, name: str) -> None:
        with self.store.mutex:
            del self.store._lines[name]

    def leftovers(self) -> list[str]:
        left: list[str] = self.store.leftovers()
        return left
