"""The blocking client. What it makes is in `skins/thread/`; decisions are in `core` and `toolbox`.

Partner: `aio.py`, the same with `await`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack

from holdfast.client import PATIENCE
from holdfast.core.options import LockOptions, Want, awaits, check_known
from holdfast.core.template import check_template, namer, title
from holdfast.errors import Misconfigured
from holdfast.ports import clock
from holdfast.ports.thread import ThreadPort, drive
from holdfast.skins.thread.barrier import Barrier
from holdfast.skins.thread.election import Election, Leader, Leadership, Observation
from holdfast.skins.thread.latch import Latch
from holdfast.skins.thread.lock import Lease, Lock, LostEvent, Permit, RWLock, Semaphore
from holdfast.skins.thread.multi import MultiLease, MultiLock
from holdfast.skins.thread.once import Once
from holdfast.skins.thread.optimistic import Optimistic
from holdfast.skins.thread.stripes import AnyStripe, StripeLease, Stripes
from holdfast.skins.thread.tools import Tools
from holdfast.types import LockInfo, Mode

__all__ = [
    "AnyStripe",
    "Barrier",
    "Election",
    "Latch",
    "Leader",
    "Leadership",
    "Lease",
    "Lock",
    "Locks",
    "LostEvent",
    "MultiLease",
    "MultiLock",
    "Observation",
    "Once",
    "Optimistic",
    "Permit",
    "RWLock",
    "Semaphore",
    "StripeLease",
    "Stripes",
    "connect",
]

P = ParamSpec("P")
R = TypeVar("R")


def connect(url: Any = None, **options: Any) -> Locks:
    """A client of the store that `url` names (else $HOLDFAST_URL, else sqlite://, a file of the
    user's own). Contacts nobody yet.

    Options may stand in the URL's query or be given as keywords; `request_timeout` (5 s) and
    `label` are known to every backend, the others are on the backend's page.
    """
    return Locks(url, options, ThreadPort)


class Locks(Tools):
    """A client: makes locks, keeps their leases, and is closed when done with."""

    def lock(self, name: str, **options: Unpack[LockOptions]) -> Lock:
        """A lock with this name; nothing is asked of the store until it is acquired."""
        return Lock(self, self._wish(name, Mode.EXCLUSIVE, options))

    def rwlock(self, name: str, **options: Unpack[LockOptions]) -> RWLock:
        """A read-write lock: `.read()` and `.write()` each give a `Lock`."""
        shared = self._wish(name, Mode.SHARED, options)
        return RWLock(self, shared, self._wish(name, Mode.EXCLUSIVE, options))

    def semaphore(
        self, name: str, permits: int, *, take: int = 1, **options: Unpack[LockOptions]
    ) -> Semaphore:
        """At most `permits` permits are held at once; each acquire takes `take` of them."""
        return Semaphore(self, self._wish(name, Mode.PERMITS, options, take, permits))

    def _wish(
        self, name: str, mode: Mode, options: LockOptions, permits: int = 1, limit: int = 1
    ) -> Want:
        check_known(options, LockOptions)
        return self._want(name, mode, options, permits, limit)

    def locked(
        self, template: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Run the decorated function under a lock named after its arguments:
        `@locks.locked("report:{user_id}")`."""
        check_template(template)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if awaits(function):
                raise Misconfigured(
                    f"{title(function)} is a coroutine function: decorate it with "
                    "`locked` of a client from holdfast.aio.connect()"
                )
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise Misconfigured(
                    f"{title(function)} is a generator: its body would run after the lock "
                    "was released. Use `with locks.lock(...)` inside it"
                )
            name_for = namer(template, function)

            @functools.wraps(function)
            def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.lock(name_for(*args, **kwargs), **options):
                    return function(*args, **kwargs)

            return locked

        return decorate

    def inspect(self, prefix: str = "") -> list[LockInfo]:
        """Who holds and who waits, for every name that begins with `prefix`."""
        return self._inspect(prefix, exact=False)

    def _inspect(self, prefix: str, *, exact: bool) -> list[LockInfo]:
        return drive(self._seen(prefix, exact))

    def evict(self, name: str) -> int:
        """The operator's force-release: end all holders of a name; how many there were. They learn
        of it at their next renewal."""
        return drive(self._evict(name))

    def sweep(self, idle: float = 0.0) -> int:
        """Forget what is over, and names unused for `idle` seconds; how much there was."""
        return drive(self._sweep(idle))

    def close(self) -> None:
        """Give back everything still held (its holders are told that it is lost), and stop."""
        if self._current.incarnation == clock.incarnation():
            drive(self._current.close(PATIENCE))

    def __enter__(self) -> Locks:
        self._engine()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
