"""`memory://`: which store a URL means, and what it promises.

Partners: `store.py`, the server's half; `../local.py`, the client's.
"""

from __future__ import annotations

import os
import threading
import time
from weakref import WeakValueDictionary

from holdfast.backends.local import Link, LocalBackend
from holdfast.backends.memory.store import Store
from holdfast.backends.url import Option, Url
from holdfast.ports import clock
from holdfast.types import Capabilities, Mode

__all__ = ["MemoryBackend"]

_stores: WeakValueDictionary[str, Store] = WeakValueDictionary()
_stores_mutex = threading.Lock()


def _forked() -> None:
    """A child has no share in the parent's stores; one of its threads may have been inside."""
    global _stores, _stores_mutex
    _stores = WeakValueDictionary[str, Store]()
    _stores_mutex = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class MemoryBackend(LocalBackend[Store]):
    """`memory://` is one store for the whole process, `memory://name` another one."""

    options: tuple[Option, ...] = ()
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="ttl",
        failover="everything, when the process ends: it lives in its memory",
        cross_process=False,
    )

    def __init__(self, store: Store, link: Link | None = None) -> None:
        super().__init__(link)
        self.store = store

    @classmethod
    def from_url(cls, url: Url) -> MemoryBackend:
        url.refuse("user", "password", "port", "path")
        name = url.host
        with _stores_mutex:  # a WeakValueDictionary's setdefault is not atomic
            store = _stores.get(name)
            if store is None:
                store = _stores[name] = Store(clock.now, time.time)
        return cls(store)
