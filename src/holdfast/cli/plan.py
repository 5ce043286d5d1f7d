"""What `holdfast run` was asked for, and the times that follow from it. Partner: `warden.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import holdfast

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run under which lock."""

    name: str
    arguments: tuple[str, ...]
    url: str | None = None
    ttl: float = 30.0
    timeout: float = -1.0
    quiet_busy: bool = False
    shared: bool = False
    permits: int | None = None
    kill: bool = True
    grace: float = 5.0

    @property
    def margin(self) -> float:
        """So long before the end of the lease all must be over: for a late timer, and for dying."""
        return min(1.0, self.ttl / 10)

    @property
    def notice(self) -> float:
        """From TERM to KILL. At most a third of the ttl: two renewals must have failed by then."""
        return min(self.grace, self.ttl / 3)

    def lock(
        self, locks: holdfast.Locks, on_lost: Callable[[holdfast.LeaseLost], None]
    ) -> holdfast.Lock | holdfast.Semaphore:
        options: holdfast.LockOptions = {
            "ttl": self.ttl,
            "metadata": {"command": os.path.basename(self.arguments[0])[:80]},
            "on_lost": on_lost,
        }
        if self.permits is not None:
            return locks.semaphore(self.name, self.permits, **options)
        if self.shared:
            return locks.rwlock(self.name, **options).read()
        return locks.lock(self.name, **options)
