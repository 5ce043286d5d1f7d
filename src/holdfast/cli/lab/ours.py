"""holdfast's form of every level: the public API, and nothing that a level could help it with."""

from __future__ import annotations

from collections.abc import Callable

import holdfast
from holdfast.cli.lab.resp import PATIENCE

__all__ = ["Ours"]


class Ours:
    def __init__(self, url: str, name: str, me: str, ttl: float) -> None:
        # As patient with a silent server as the naive forms are.
        self._locks = holdfast.connect(url, label=me, request_timeout=PATIENCE)
        self._lock = self._locks.lock(name, ttl=ttl)
        self._lease: holdfast.Lease | None = None
        self.on_lost: Callable[[], None] | None = None

    def attempt(self) -> bool:
        return self._have(self._lock.acquire(blocking=False))

    def acquire(self, patience: float) -> bool:
        return self._have(self._lock.acquire(timeout=patience))

    def _have(self, lease: holdfast.Lease | None) -> bool:
        self._lease = lease
        if lease is not None:
            lease.on_lost(self._lost)
        return lease is not None

    def _lost(self, error: holdfast.LeaseLost) -> None:
        if self.on_lost is not None:
            self.on_lost()

    @property
    def held(self) -> bool:
        return self._lease is not None and self._lease.held

    @property
    def fence(self) -> int | None:
        return self._lease.fence if self._lease is not None else None

    def release(self) -> bool | None:
        assert self._lease is not None
        return self._lease.release()
