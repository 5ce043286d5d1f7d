"""`locks.once(...)` for threads. Partner: `toolbox/once.py`, which decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from holdfast.core.handle import refused
from holdfast.core.options import awaits, checked_timeout
from holdfast.errors import Misconfigured
from holdfast.ports.thread import drive, outside
from holdfast.skins.thread.lock import Acquirable, Lease
from holdfast.toolbox import once
from holdfast.types import Busy

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["Once", "Using", "ValueLock"]

T = TypeVar("T")


class Using(Lease, Generic[T]):
    """A value in use: nobody replaces it meanwhile."""

    __slots__ = ("value",)
    value: T


class ValueLock(Acquirable[Using[T]]):
    """What `hold()` gives to `with`."""

    __slots__ = ("_compute", "_recipe")

    def __init__(self, client: Locks, recipe: once.Recipe, compute: once.Compute) -> None:
        super().__init__(client, recipe.sharing)
        self._recipe = recipe
        self._compute = compute

    def _inside(self) -> bool:
        context = self._context()
        return any(
            self._leases.get(lease) is context and lease.held for lease in list(self._leases)
        )

    def _take(self, timeout: float, blocking: bool, *, entering: bool) -> Using[T] | None:
        coming = self._coming.pop(self._context(), None) if entering else None
        use = once.Use(self._client._engine(), self._recipe)
        try:
            patience = timeout if blocking else 0.0
            hold, value = drive(use.run(self._compute, patience, self._inside()))
            if isinstance(hold, Busy):
                if entering:
                    raise refused(self._want, hold, timeout)
                return None
            lease = Using[T](use.acquisition, hold, self)
            lease.value = value
            self._keep(lease, entering, coming)
            return lease
        except BaseException:
            use.abandon()
            self._forget(use.acquisition)
            raise


class Once(Generic[T]):
    """A value that one computes and everybody reads."""

    def __init__(self, client: Locks, recipe: once.Recipe, compute: Callable[[], T]) -> None:
        if not callable(compute) or awaits(compute):
            raise Misconfigured(
                "compute is a function without arguments that returns the value; a coroutine "
                "function belongs to a client from holdfast.aio.connect()"
            )

        async def call() -> T:
            return outside(compute)

        self._client = client
        self._recipe = recipe
        self._compute: once.Compute = call
        # Made here: threads that ask for it at once must have the same.
        self._hold = None if recipe.use is None else ValueLock[T](client, recipe, call)

    def get(self, timeout: float | None = None) -> T:
        """The value: read, or computed if there is none. `timeout` is for waiting, as that of
        `Lock.acquire`, and not for the computation; `AcquireTimeout` when it is over."""
        recipe = self._recipe
        patience = recipe.timeout if timeout is None else checked_timeout(timeout)
        inside = self._hold is not None and self._hold._inside()
        engine = self._client._engine()
        return cast(T, drive(once.get(engine, recipe, self._compute, patience, inside)))

    def hold(self) -> ValueLock[T]:
        """`with token.hold() as using: ... using.value`: the value is not replaced meanwhile."""
        if self._hold is None:  # says why it cannot be
            return ValueLock(self._client, self._recipe, self._compute)
        return self._hold

    def invalidate(self, value: T | None = None, timeout: float | None = None) -> None:
        """Forget the value, after a computation that is under way; with `value`, only if it is
        still that one, and without waiting."""
        recipe = self._recipe
        patience = recipe.timeout if timeout is None else checked_timeout(timeout)
        drive(once.invalidate(self._client._engine(), recipe, value, patience))

    @property
    def name(self) -> str:
        """Its name."""
        return self._recipe.name

    def __repr__(self) -> str:
        return f"<Once {self.name!r} ttl={self._recipe.ttl:g}>"
