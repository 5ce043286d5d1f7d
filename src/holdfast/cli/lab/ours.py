"""holdfast's form of every level: the public API, and nothing that a level could help it with."""

from __future__ import annotations

import holdfast
from holdfast.cli.lab.resp import PATIENCE

__all__ = ["Ours"]


class Ours:
    def __init__(self, url: str, name: str, me: str, ttl: float) -> None:
        # As patient with a silent server as the naive forms are.
        self._locks = holdfast.connect(url, label=me, request_timeout=PATIENCE)
        self._lock = self._locks.lock(name, ttl=ttl)
        self._lease: holdfast.Lease | None = None

    def attempt(self) -> bool:
        self._lease = self._lock.acquire(blocking=False)
        return self._lease is not None

    def acquire(self, patience: float) -> bool:
        self._lease = self._lock.acquire(timeout=patience)
        return self._lease is not None

    @property
    def held(self) -> bool:
        return self._lease is not None and self._lease.held

    @property
    def fence(self) -> int | None:
        return self._lease.fence if self._lease is not None else None

    def release(self) -> bool | None:
        assert self._lease is not None
        return self._lease.release()
