"""A backend that counts: how many requests, how large the renewals, and when a claim is in line.

Contract: `connect(url)` gives a client of any backend and the counts of what it asks of the store.
The wrapped backend does the work; what it answers is passed on as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import holdfast
from holdfast import aio
from holdfast.backends import find
from holdfast.backends.url import Option, Url
from holdfast.core.backend import Backend
from holdfast.types import Busy, Claim, Grant, Lost, Renewed, Unknown

__all__ = ["Counted", "aio_connect", "connect"]

PREFIX = "counted+"


class Counted:
    options: tuple[Option, ...] = ()

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._mutex = threading.Lock()
        self._alarm: tuple[int, Callable[[], Any]] | None = None
        self.renewals: list[int] = []  # the size of each batch
        self.renewed = 0
        self.queued: dict[str, int] = {}  # owner -> when it stood in line (perf_counter_ns)

    @classmethod
    def from_url(cls, url: Url) -> Counted:
        scheme = url.scheme.removeprefix(PREFIX)
        return cls(find(scheme).from_url(replace(url, scheme=scheme)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def after(self, renewed: int, call: Callable[[], Any]) -> None:
        """Call once that many leases have been renewed, counted from the beginning."""
        with self._mutex:
            self._alarm = renewed, call

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        answers = await self._inner.renew(grants, deadline)
        with self._mutex:
            self.renewals.append(len(grants))
            self.renewed += len(grants)
            if self._alarm is not None and self.renewed >= self._alarm[0]:
                self._alarm[1]()
                self._alarm = None
        return answers

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        self.queued.setdefault(claim.owner, time.perf_counter_ns())
        return await self._inner.wait(claim, busy, deadline)


def connect(url: str) -> tuple[holdfast.Locks, Counted]:
    locks = holdfast.connect(_counted(url))
    return locks, _counts(locks)


def aio_connect(url: str) -> tuple[aio.Locks, Counted]:
    locks = aio.connect(_counted(url))
    return locks, _counts(locks)


def _counted(url: str) -> str:
    holdfast.register(PREFIX + url.partition("://")[0], f"{__name__}:Counted")
    return PREFIX + url


def _counts(locks: holdfast.Locks | aio.Locks) -> Counted:
    backend = locks._current.backend
    assert isinstance(backend, Counted)
    return backend
