"""The asyncio client. What it makes is in `skins/task/`; decisions are in `core` and `toolbox`.

Partner: `sync.py`, the same without `await`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from holdfast.client import PATIENCE
from holdfast.core.acquire import Engine
from holdfast.core.misuse import no_attribute
from holdfast.core.options import Want, awaits, check_known
from holdfast.core.template import check_template, namer, title
from holdfast.errors import Misconfigured
from holdfast.ports import clock
from holdfast.ports.asyncio import AsyncioPort
from holdfast.skins.task.barrier import Barrier
from holdfast.skins.task.election import Election, Leader, Leadership, Observation
from holdfast.skins.task.latch import Latch
from holdfast.skins.task.lock import (
    AioLockOptions,
    Lease,
    Lock,
    LostEvent,
    Permit,
    RWLock,
    Semaphore,
)
from holdfast.skins.task.multi import MultiLease, MultiLock
from holdfast.skins.task.once import Once
from holdfast.skins.task.optimistic import Optimistic
from holdfast.skins.task.stripes import AnyStripe, StripeLease, Stripes
from holdfast.skins.task.tools import Tools
from holdfast.types import LockInfo, Mode

__all__ = [
    "AioLockOptions",
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

    It belongs to the event loop that first uses it. Best used as `async with`.
    """
    return Locks(url, options, AsyncioPort)


if not TYPE_CHECKING:  # a checker that saw this would let any name pass

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, Locks)


class Locks(Tools):
    """A client: makes locks, keeps their leases, and is closed when done with."""

    def lock(self, name: str, **options: Unpack[AioLockOptions]) -> Lock:
        """A lock with this name; nothing is asked of the store until it is acquired."""
        return Lock(self, *self._wish(name, Mode.EXCLUSIVE, options))

    def rwlock(self, name: str, **options: Unpack[AioLockOptions]) -> RWLock:
        """A read-write lock: `.read()` and `.write()` each give a `Lock`."""
        shared, _ = self._wish(name, Mode.SHARED, options)
        return RWLock(self, shared, *self._wish(name, Mode.EXCLUSIVE, options))

    def semaphore(
        self, name: str, permits: int, *, take: int = 1, **options: Unpack[AioLockOptions]
    ) -> Semaphore:
        """At most `permits` permits are held at once; each acquire takes `take` of them."""
        return Semaphore(self, *self._wish(name, Mode.PERMITS, options, take, permits))

    def _wish(
        self, name: str, mode: Mode, options: AioLockOptions, permits: int = 1, limit: int = 1
    ) -> tuple[Want, bool]:
        check_known(options, AioLockOptions)
        cancel = options.get("cancel_on_lost", True)
        return self._want(name, mode, options, permits, limit), cancel

    def locked(
        self, template: str, **options: Unpack[AioLockOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Run the decorated coroutine function under a lock named after its arguments:
        `@locks.locked("report:{user_id}")`."""
        check_template(template)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            if inspect.isasyncgenfunction(function):
                raise Misconfigured(
                    f"{title(function)} is an async generator: its body would run after the "
                    "lock was released. Use `async with locks.lock(...)` inside it"
                )
            if not awaits(function):
                raise Misconfigured(
                    f"{title(function)} is not a coroutine function: decorate it with "
                    "`locked` of a client from holdfast.connect()"
                )
            name_for = namer(template, function)

            @functools.wraps(function)
            async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self.lock(name_for(*args, **kwargs), **options):
                    return await function(*args, **kwargs)

            return locked

        return decorate

    async def inspect(self, prefix: str = "") -> list[LockInfo]:
        """Who holds and who waits, for every name that begins with `prefix`."""
        return await self._inspect(prefix, exact=False)

    async def _inspect(self, prefix: str, *, exact: bool) -> list[LockInfo]:
        return await self._seen(prefix, exact)

    async def evict(self, name: str) -> int:
        """Force-release: end all holders, who learn of it at their next renewal; how many."""
        return await self._evict(name)

    async def sweep(self, idle: float = 0.0) -> int:
        """Forget what is over, and names unused for `idle` seconds; how much there was."""
        return await self._sweep(idle)

    def _engine(self) -> Engine:
        engine = super()._engine()
        assert isinstance(engine.port, AsyncioPort)
        engine.port.check_loop()
        return engine

    async def close(self) -> None:
        """Give back everything still held (its holders are told that it is lost), and stop."""
        if self._current.incarnation == clock.incarnation():
            await self._current.close(PATIENCE)

    async def __aenter__(self) -> Locks:
        self._engine()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
