"""Locks and leases for threads. Contract and hazard: `skins/__init__.py`. Partners: `core`, which
decides; `skins/task/lock.py`, the same with `await`."""

from __future__ import annotations

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
from holdfast.core.misuse import Blocking, InParts, made_by_a_client
from holdfast.core.options import Want
from holdfast.ports.thread import drive
from holdfast.toolbox.transact import transact
from holdfast.types import Busy

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["Acquirable", "BaseLease", "Lease", "Lock", "LostEvent", "Permit", "RWLock", "Semaphore"]

L = TypeVar("L", bound="BaseLease")


class LostEvent:
    """`lease.lost`: waitable, like a `threading.Event` that the lease's loss sets."""

    __slots__ = ("_lease",)

    def __init__(self, lease: BaseLease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease._lost()

    def wait(self, timeout: float | None = None) -> bool:
        """True when the lease is lost; False when it was released, or time ran out."""
        engine = self._lease._engine
        deadline = deadline_of(engine.port, timeout)
        lease = self._lease
        return drive(engine.until_ended(lease._hold, lambda: lease._done, deadline))

    def __bool__(self) -> bool:
        return self.is_set()


class BaseLease(Blocking, Handle):
    """What you hold."""

    __slots__ = ()

    @property
    def lost(self) -> LostEvent:
        """Waitable: `lease.lost.wait(timeout)`, `lease.lost.is_set()`."""
        return LostEvent(self)

    def renew(self) -> float:
        """Extend to the full ttl now, in one round trip; returns `remaining()`. Raises `LeaseLost`
        when it is lost, `Unavailable` when nobody answered."""
        self.check()
        drive(self._engine.renew(self._hold))
        return self.remaining()

    def release(self) -> bool:
        """Give it up. True: it was ours until now. False: it had been lost. Again: does nothing."""
        try:
            if not self._finish():
                return not self._hold.lost
            return drive(self._engine.release(self._hold, self._share))
        except BaseException:
            self._abandon()
            raise

    def __enter__(self: L) -> L:
        self._enter()
        return self

    def _exit(self, lease: Self, kind: Any, error: Any, trace: Any, guard: Guard | None) -> None:
        if not self.release() and kind is None and self._hold.lost:
            raise self._hold.loss()

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __exit__ = Exit()


class Lease(Fenced, BaseLease):
    """An exclusive or shared lease."""

    __slots__ = ()

    def transact(
        self,
        *,
        put: Mapping[str, str | bytes] | None = None,
        delete: Iterable[str] = (),
    ) -> int:
        """Put and delete keys of yours in the lease's own store, all in one step and only while
        the lease holds there; returns the store's revision. `StaleFence` if it does not. etcd."""
        return drive(transact(self, put, delete))

    def downgrade(self) -> None:
        """The writer becomes a reader, in one round trip, with no other writer in between; the
        lease is shared from now on. Where the store cannot, `Unsupported`."""
        self.check()
        drive(self._engine.downgrade(self._hold))


class Permit(Unfenced, BaseLease):
    """A lease of one or more of a semaphore's permits."""

    __slots__ = ()


class Acquirable(Blocking, Keyring[L]):
    """What locks and semaphores share: acquire, release, with."""

    __slots__ = ()
    _lease: type[L]
    _client: Locks

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> L | None:
        """A lease, which is truthy, or None. `timeout`: seconds, -1 for ever, 0 not at all;
        without it the constructor's applies. An unreachable store raises `Unavailable`."""
        return self._take(self._patience(blocking, timeout), blocking, entering=False)

    def _acquisition(self, engine: Engine) -> Taking:
        """One acquire, from its first request on."""
        return Acquisition(engine, self._want)

    def _take(self, timeout: float, blocking: bool, *, entering: bool) -> L | None:
        """None if busy, except that entering a `with` then raises.

        Callers return this result as it is: a line after this call would be one at which Ctrl-C
        finds a lease that is neither in here nor yet in the caller's hands.
        """
        coming = self._coming.pop(self._context(), None) if entering else None
        engine = self._client._engine()
        acquisition = self._acquisition(engine)
        try:
            hold = drive(acquisition.run(blocking and timeout != 0, timeout))
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

    def release(self) -> bool:
        """Release the calling thread's newest lease of this lock object, else `NotHeld`."""
        return self._newest().release()

    def locked(self) -> bool:
        """Whether anybody, anywhere, holds this name now. Old news when you read it."""
        return any(info.holders for info in self._client._inspect(self.name, exact=True))

    def __enter__(self) -> L:
        return self._take(self._want.timeout, True, entering=True)  # type: ignore[return-value]

    def _exit(self, lease: L, kind: Any, error: Any, trace: Any, guard: Guard | None) -> None:
        lease._exit(lease, kind, error, trace, guard)

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __exit__ = Exit()


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
        self, client: Locks, shared: Want | None = None, exclusive: Want | None = None
    ) -> None:
        if shared is None or exclusive is None:
            raise made_by_a_client(RWLock)
        self._client = client
        self._shared = shared
        self._exclusive = exclusive

    def read(self) -> Lock:
        """`with rw.read():` shares with other readers."""
        return Lock(self._client, self._shared)

    def write(self) -> Lock:
        """`with rw.write():` excludes everybody."""
        return Lock(self._client, self._exclusive)
