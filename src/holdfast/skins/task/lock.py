"""Locks and leases for tasks. Contract and hazard: `skins/__init__.py`. Partners: `core`, which
decides; `skins/thread/lock.py`, the same without `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.deadline import deadline_of
from holdfast.core.guard import Exit, Guard
from holdfast.core.handle import (
    Fenced,
    Handle,
    Keyring,
    Taking,
    Unfenced,
    refused,
)
from holdfast.core.misuse import Awaited, InParts, made_by_a_client
from holdfast.core.options import LockOptions, Want
from holdfast.errors import LeaseLost
from holdfast.toolbox.transact import transact
from holdfast.types import Busy

if TYPE_CHECKING:
    from holdfast.aio import Locks

__all__ = [
    "Acquirable",
    "AioLockOptions",
    "BaseLease",
    "Lease",
    "Lock",
    "LostEvent",
    "Permit",
    "RWLock",
    "Semaphore",
]

L = TypeVar("L", bound="BaseLease")


class AioLockOptions(LockOptions, total=False):
    """The options of `LockOptions`, and one more."""

    cancel_on_lost: bool
    """True (default): when the lease is lost, the task inside `async with` is cancelled, as
    `asyncio.timeout` does it, and the `with` raises `LeaseLost`."""


class LostEvent:
    """`lease.lost`: waitable, like an `asyncio.Event` that the lease's loss sets."""

    __slots__ = ("_lease",)

    def __init__(self, lease: BaseLease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease._lost()

    async def wait(self, timeout: float | None = None) -> bool:
        """True when the lease is lost; False when it was released, or time ran out."""
        engine = self._lease._engine
        deadline = deadline_of(engine.port, timeout)
        lease = self._lease
        return await engine.until_ended(lease._hold, lambda: lease._done, deadline)

    def __bool__(self) -> bool:
        return self.is_set()


class BaseLease(Awaited, Handle):
    """What you hold."""

    __slots__ = ("_body",)
    _body: _Body

    @property
    def lost(self) -> LostEvent:
        """Waitable: `await lease.lost.wait()`, `lease.lost.is_set()`."""
        return LostEvent(self)

    async def renew(self) -> float:
        """Extend to the full ttl now, in one round trip; returns `remaining()`. Raises `LeaseLost`
        when it is lost, `Unavailable` when nobody answered."""
        self.check()
        await self._engine.renew(self._hold)
        return self.remaining()

    async def release(self) -> bool:
        """Give it up. True: it was ours until now. False: it had been lost. Again: does nothing."""
        try:
            if not self._finish():
                return not self._hold.lost
            return await self._engine.release(self._hold, self._share)
        except BaseException:
            self._abandon()
            raise

    async def __aenter__(self: L) -> L:
        self._enter()
        return self

    async def _exit(
        self, lease: Self, kind: Any, error: Any, trace: Any, guard: Guard | None
    ) -> None:
        if not await self.release() and kind is None and self._hold.lost:
            raise self._hold.loss()

    if TYPE_CHECKING:

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __aexit__ = Exit()


class Lease(Fenced, BaseLease):
    """An exclusive or shared lease."""

    __slots__ = ()

    async def transact(
        self,
        *,
        put: Mapping[str, str | bytes] | None = None,
        delete: Iterable[str] = (),
    ) -> int:
        """Put and delete keys of yours in the lease's own store, all in one step and only while
        the lease holds there; returns the store's revision. `StaleFence` if it does not. etcd."""
        return await transact(self, put, delete)

    async def downgrade(self) -> None:
        """The writer becomes a reader, in one round trip, with no other writer in between; the
        lease is shared from now on. Where the store cannot, `Unsupported`."""
        self.check()
        await self._engine.downgrade(self._hold)


class Permit(Unfenced, BaseLease):
    """A lease of one or more of a semaphore's permits."""

    __slots__ = ()


class _Body:
    """The task inside an `async with`, and its cancellation when the lease is lost."""

    __slots__ = ("_cancelled", "_entered_with", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        self._task: asyncio.Task[Any] | None = task
        self._entered_with = 0 if task is None else task.cancelling()
        self._cancelled = False

    def lost(self, error: LeaseLost) -> None:
        if self._task is not None:  # still inside
            self._cancelled = True
            self._task.cancel(str(error))

    async def leave(self, kind: type[BaseException] | None) -> bool:
        """Take our own cancellation back. True: the body ended by it and by nothing else."""
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return False
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            # The body ended before our cancellation reached it: receive it here, or it would
            # strike at some later await that has nothing to do with this lock.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
            if task.uncancel() > self._entered_with:
                raise asyncio.CancelledError  # somebody outside wants this task to end
            return False
        return task.uncancel() <= self._entered_with


class Acquirable(Awaited, Keyring[L]):
    """What locks and semaphores share: acquire, release, with."""

    __slots__ = ("_cancel_on_lost",)
    _lease: type[L]

    _client: Locks

    def __init__(
        self, client: Locks, want: Want | None = None, cancel_on_lost: bool = True
    ) -> None:
        super().__init__(client, want)
        self._cancel_on_lost = cancel_on_lost

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> L | None:
        """A lease, which is truthy, or None. `timeout`: seconds, -1 for ever, 0 not at all;
        without it the constructor's applies. An unreachable store raises `Unavailable`."""
        return await self._take(self._patience(blocking, timeout), blocking, entering=False)

    def _acquisition(self, engine: Engine) -> Taking:
        """One acquire, from its first request on."""
        return Acquisition(engine, self._want)

    async def _take(self, timeout: float, blocking: bool, *, entering: bool) -> L | None:
        """None if busy, except that entering a `with` then raises."""
        coming = self._coming.pop(self._context(), None) if entering else None
        engine = self._client._engine()
        acquisition = self._acquisition(engine)
        try:
            hold = await acquisition.run(blocking and timeout != 0, timeout)
            if isinstance(hold, Busy):
                if entering:
                    raise refused(acquisition.want, hold, timeout, acquisition.own())
                return None
            lease = self._lease(acquisition, hold, self)
            self._keep(lease, entering, coming)
            return lease
        except BaseException:
            acquisition.abandon()
            self._forget(acquisition)
            raise

    async def release(self) -> bool:
        """Release the calling task's newest lease of this lock object, else `NotHeld`."""
        return await self._newest().release()

    async def locked(self) -> bool:
        """Whether anybody, anywhere, holds this name now. Old news when you read it."""
        return any(info.holders for info in await self._client._inspect(self.name, exact=True))

    async def __aenter__(self) -> L:
        lease = await self._take(self._want.timeout, True, entering=True)
        assert lease is not None  # it raised instead
        if self._cancel_on_lost:
            lease._body = _Body()
            lease.on_lost(lease._body.lost)
        return lease

    async def _exit(self, lease: L, kind: Any, error: Any, trace: Any, guard: Guard | None) -> None:
        body: _Body | None = getattr(lease, "_body", None)
        try:
            cancelled = body is not None and await body.leave(kind)
        except BaseException:  # somebody outside cancels us, and wins
            await lease.release()
            raise
        await lease._exit(lease, kind, error, trace, guard)
        if cancelled:
            raise lease._hold.loss() from error

    if TYPE_CHECKING:

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __aexit__ = Exit()


class Lock(Acquirable[Lease]):
    """A lock that one holder has at a time (or, from `rwlock.read()`, all readers)."""

    __slots__ = ()
    _lease = Lease


class Semaphore(Acquirable[Permit]):
    """A fixed number of permits."""

    __slots__ = ()
    _lease = Permit


class RWLock(InParts):
    """Many readers or one writer."""

    _parts = "read() or write()"

    def __init__(
        self,
        client: Locks,
        shared: Want | None = None,
        exclusive: Want | None = None,
        cancel: bool = True,
    ) -> None:
        if shared is None or exclusive is None:
            raise made_by_a_client(RWLock)
        self._client = client
        self._shared = shared
        self._exclusive = exclusive
        self._cancel_on_lost = cancel

    def read(self) -> Lock:
        """`async with rw.read():` shares with other readers."""
        return Lock(self._client, self._shared, self._cancel_on_lost)

    def write(self) -> Lock:
        """`async with rw.write():` excludes everybody."""
        return Lock(self._client, self._exclusive, self._cancel_on_lost)
