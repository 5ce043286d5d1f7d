"""The blocking skin: enter, drive, return. Decisions are in `core`.

Hazard: Ctrl-C may strike between any two lines. Everything from the first request until the lease
is in the caller's hands is inside one `try`, whose handler hands the claim to the keeper.
Partner: `aio.py`, the same with `await`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

from holdfast.client import PATIENCE, Client
from holdfast.core import optimistic
from holdfast.core.acquire import Acquisition
from holdfast.core.guard import Exit, Guard
from holdfast.core.handle import Fenced, Handle, Keyring, Unfenced, deadline_after, refused
from holdfast.core.names import checked_name, checked_prefix
from holdfast.core.options import LockOptions, Want, check_known
from holdfast.core.template import namer
from holdfast.errors import Misconfigured
from holdfast.ports import clock
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Busy, LockInfo, Mode

__all__ = [
    "Lease",
    "Lock",
    "Locks",
    "LostEvent",
    "Optimistic",
    "Permit",
    "RWLock",
    "Semaphore",
    "connect",
]

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound="BaseLease")


def connect(url: Any = None, **options: Any) -> Locks:
    """A client of the store that `url` names (else $HOLDFAST_URL, else sqlite://, a file of the
    user's own). Contacts nobody yet.

    Options may stand in the URL's query or be given as keywords; `request_timeout` (5 s) and
    `label` are known to every backend, the others are on the backend's page.
    """
    return Locks(url, options, ThreadPort)


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
        deadline = deadline_after(engine, timeout)
        lease = self._lease
        return drive(engine.until_ended(lease._hold, lambda: lease._done, deadline))

    def __bool__(self) -> bool:
        return self.is_set()


class BaseLease(Handle):
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
        self._watch_with()
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


class Permit(Unfenced, BaseLease):
    """A lease of one or more of a semaphore's permits."""

    __slots__ = ()


class _Acquirable(Keyring[L]):
    """What locks and semaphores share: acquire, release, with."""

    __slots__ = ()
    _lease: type[L]
    _client: Locks

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> L | None:
        """A lease, which is truthy, or None. `timeout`: seconds, -1 for ever, 0 not at all;
        without it the constructor's applies. An unreachable store raises `Unavailable`."""
        return self._take(self._patience(blocking, timeout), blocking, entering=False)

    def _take(self, timeout: float, blocking: bool, *, entering: bool) -> L | None:
        """None if busy, except that entering a `with` then raises.

        Callers return this result as it is: a line after this call would be one at which Ctrl-C
        finds a lease that is neither in here nor yet in the caller's hands.
        """
        coming = self._coming.pop(self._context(), None) if entering else None
        engine = self._client._engine()
        acquisition = Acquisition(engine, self._want)
        try:
            hold = drive(acquisition.run(blocking and timeout != 0, timeout))
            if isinstance(hold, Busy):
                if entering:
                    raise refused(self._want, hold, timeout)
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


class Lock(_Acquirable[Lease]):
    """A lock that one holder has at a time (or, from `rwlock.read()`, all readers)."""

    __slots__ = ()
    _lease = Lease


class Semaphore(_Acquirable[Permit]):
    """A fixed number of permits."""

    __slots__ = ()
    _lease = Permit


class RWLock:
    """Many readers or one writer."""

    def __init__(self, client: Locks, shared: Want, exclusive: Want) -> None:
        self._client = client
        self._shared = shared
        self._exclusive = exclusive

    def read(self) -> Lock:
        """`with rw.read():` shares with other readers."""
        return Lock(self._client, self._shared)

    def write(self) -> Lock:
        """`with rw.write():` excludes everybody."""
        return Lock(self._client, self._exclusive)


class Optimistic:
    """A version to be compared when the work is done; nothing is held meanwhile."""

    def __init__(self, client: Locks, name: str) -> None:
        self._client = client
        self.name = name

    def version(self) -> int:
        """The version that is there now; 0 before the first commit."""
        return drive(optimistic.read(self._client._engine(), self.name))

    def commit(self, version: int) -> int | None:
        """Replace this version; the new one, or None if somebody else has replaced it before."""
        return drive(optimistic.commit(self._client._engine(), self.name, version))


class Locks(Client):
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

    def optimistic(self, name: str) -> Optimistic:
        """Compare-and-swap of the caller's own work: `version()`, and `commit(version)`."""
        return Optimistic(self, checked_name(name))

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

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise Misconfigured(
                    f"{function.__qualname__} is a coroutine function: decorate it with "
                    "`locked` of a client from holdfast.aio.connect()"
                )
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise Misconfigured(
                    f"{function.__qualname__} is a generator: its body would run after the lock "
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
        engine = self._engine()
        deadline = engine.port.now() + engine.request_timeout
        return drive(engine.backend.inspect(checked_prefix(prefix), exact, deadline))

    def evict(self, name: str) -> int:
        """The operator's force-release: end all holders of a name; how many there were. They learn
        of it at their next renewal."""
        engine = self._engine()
        name = checked_name(name)
        return drive(engine.backend.evict(name, engine.port.now() + engine.request_timeout))

    def sweep(self, idle: float = 0.0) -> int:
        """Forget what is over, and names unused for `idle` seconds; how much there was."""
        engine, patience = self._engine(), max(PATIENCE, self._timeout)
        return drive(self._swept().sweep(idle, engine.port.now() + patience))

    def close(self) -> None:
        """Give back everything still held (its holders are told that it is lost), and stop."""
        if self._current.incarnation == clock.incarnation():
            drive(self._current.close(PATIENCE))

    def __enter__(self) -> Locks:
        self._engine()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
