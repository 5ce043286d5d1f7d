"""What both skins' leases and locks have in common: everything that needs no waiting.

Contract: ownership belongs to the lease object, never to a thread. The lock object keeps its leases
alive, so `lock.acquire()` without keeping the result works as with `threading.Lock`; a lease that
nobody can reach any more is given back. Partners: `skins/`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from holdfast.core.acquire import Engine
from holdfast.core.guard import Guard
from holdfast.core.hold import RELEASED, Hold
from holdfast.core.misuse import made_by_a_client
from holdfast.core.options import Want, checked_callback, checked_timeout
from holdfast.core.reentry import advice
from holdfast.core.stores import GUARDS
from holdfast.errors import AcquireTimeout, LeaseLost, Misconfigured, NotHeld, Unsupported
from holdfast.types import Busy, Mode, TxnGuard

__all__ = ["Fenced", "Handle", "Keyring", "Taking", "Unfenced", "refused"]

H = TypeVar("H", bound="Handle")


class Client(Protocol):
    """What a lock needs of the client that made it."""

    _current: Engine

    def _engine(self) -> Engine: ...


class Taking(Protocol):
    """One acquire: `Acquisition`, or what a tool has in its place."""

    @property
    def engine(self) -> Engine: ...

    @property
    def want(self) -> Want:
        """What is asked for; where that is several things, the one that was not to be had."""
        ...

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy: ...

    def own(self) -> Hold | None:
        """What the calling thread or task has itself, and therefore would wait for in vain."""
        ...

    def abandon(self) -> None: ...


class Handle:
    """A lease, as far as it can be looked at without waiting."""

    __slots__ = (
        "__weakref__", "_coming", "_done", "_engine", "_hold", "_keyring", "_share", "_taker"
    )  # fmt: skip
    _taker: object  # the thread or task that took it, and has not passed it on

    def __init__(self, acquisition: Taking, hold: Hold, keyring: Keyring[Any]) -> None:
        self._done = False
        self._coming: weakref.ref[Guard] | None = None  # a `with` statement about to enter it
        self._engine = acquisition.engine
        self._share = acquisition
        self._keyring = keyring._weakly
        self._hold = hold

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._hold.claim.name

    @property
    def mode(self) -> Mode:
        """Exclusive, shared or permits."""
        return self._hold.claim.mode

    @property
    def held(self) -> bool:
        """Whether it may be relied on at this very moment: neither released, lost, uncertain nor
        inherited by fork. Computed from the clock at every look, whatever threads or loops do."""
        return not self._done and self._engine.trusted(self._hold)

    @property
    def uncertain(self) -> bool:
        """The store cannot be asked right now: not safe to rely on, and not yet known to be lost.
        Becomes held again, or lost."""
        hold, port = self._hold, self._engine.port
        now = port.now()
        return (
            not self._done
            and not hold.end
            and hold.certain_until <= now < hold.until
            and hold.incarnation == port.incarnation()
        )

    def remaining(self) -> float:
        """Seconds for which the lease is valid if it is not renewed again; 0 when it is over."""
        hold, port = self._hold, self._engine.port
        if self._done or hold.end or hold.incarnation != port.incarnation():
            return 0.0
        return max(0.0, hold.until - port.now())

    def check(self) -> None:
        """Return if the lease may be relied on, raise `LeaseLost` (or `NotHeld`) if not."""
        hold, engine = self._hold, self._engine
        if self.held:
            return
        if hold.incarnation != engine.port.incarnation():
            raise _lost(hold, "it belongs to the parent of this forked process")
        if hold.lost:
            raise hold.loss()
        if self._done or hold.end == RELEASED:
            raise NotHeld(f"this lease of {self.name!r} was released; acquire it again")
        engine.check_deadline(hold)
        if hold.lost:
            raise hold.loss()
        raise _lost(hold, "it is uncertain: the store could not be asked for too long")

    def on_lost(self, callback: Callable[[LeaseLost], Any]) -> None:
        """Call back once if the lease is lost; at once if it already was."""
        engine = self._engine
        checked_callback(callback, engine.port.asynchronous)
        engine.port.prepare_call()
        self._hold.listen(self._share, callback, engine.port)
        engine.check_deadline(self._hold)  # which calls, if it was over and nobody had noticed

    def detach(self) -> None:
        """The thread or task that took it has it no longer: another may. Needed for reentrant
        locks, and if the one that passes on a shared lease will ask to write."""
        hold, port = self._hold, self._engine.port
        self._taker = None
        if hold.incarnation == port.incarnation():  # else the mutex may be one of the parent's
            with port.mutex():
                hold.forget()

    def txn_guard(self) -> TxnGuard:
        """The comparison that makes a transaction of yours in the same store take effect only while
        this lease holds there. etcd has it; other backends raise `Unsupported`."""
        token = self._hold.grant.token
        if not isinstance(token, TxnGuard):
            raise Unsupported(
                f"this backend's leases cannot be compared in a transaction of the store ({GUARDS} "
                "can); have the resource check the fencing token"
            )
        return token

    def _lost(self) -> bool:
        """As `lost.is_set()`: computed, and noticed."""
        hold, engine = self._hold, self._engine
        engine.check_deadline(hold)
        return hold.lost or hold.incarnation != engine.port.incarnation()

    def _finish(self) -> bool:
        """Mark this lease as given up; False if it had been before. The keyring lets go of it."""
        if self._done:
            return False
        self._done = True
        keyring = self._keyring()
        if keyring is not None:
            keyring._drop(self)
        return True

    def _expect(self, guard: weakref.ref[Guard]) -> None:
        self._coming = guard

    def _enter(self) -> None:
        """By a `with` of its own, whose disappearance shall be noticed. Not if it is over: the body
        would run without the lock."""
        self.check()
        coming, self._coming = self._coming, None
        guard = None if coming is None else coming()
        if guard is not None:
            guard.watch(self)

    def _last_entered(self) -> Handle:
        return self

    def _abandon(self) -> None:
        """Give it up without waiting: whatever was interrupted, the keeper finishes it."""
        self._finish()
        self._engine.keeper.drop(self._hold, self._share)

    def __bool__(self) -> bool:
        """Always true: `if lock.acquire(...)` asks whether there is a lease. See `held`."""
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the lease of {self.name!r} belongs to this process, which renews it: it cannot be "
            "pickled or copied. Send its fencing token (lease.fence), or acquire where the work is"
        )

    def __repr__(self) -> str:
        hold = self._hold
        if self.held:
            state = f"held for {self.remaining():.3f} s"
        elif self._done or hold.end == RELEASED:
            state = "released"
        else:
            state = "uncertain" if self.uncertain else "lost"
        return f"<{type(self).__name__} {self.name!r} {self.mode.value} {state}>"


class Fenced(Handle):
    """An exclusive or shared lease."""

    __slots__ = ()

    @property
    def fence(self) -> int:
        """The fencing token: larger for every later exclusive holder of this name. Hand it to the
        resource, and have the resource refuse a smaller one than it has seen."""
        fence = self._hold.fence
        if fence is None:
            raise Unsupported(
                f"this backend gives no fencing token for {self.mode.value} claims; see "
                "`locks.capabilities.fencing`"
            )
        return fence


class Unfenced(Handle):
    """A lease of permits."""

    __slots__ = ()

    @property
    def fence(self) -> int | None:
        """None, unless the store happens to order its permits."""
        return self._hold.fence


class Keyring(Generic[H]):
    """A lock object's leases, by the thread or task that took them, in that order."""

    __slots__ = (
        "__weakref__",
        "_client",
        "_coming",
        "_leases",
        "_sweep_at",
        "_unpaired",
        "_want",
        "_weakly",
    )

    def __init__(self, client: Client, want: Want | None = None) -> None:
        if not isinstance(want, Want):  # somebody has called the class
            raise made_by_a_client(type(self))
        self._client = client
        self._want = want
        self._leases: dict[H, object] = {}  # single operations are atomic
        self._sweep_at = 16
        self._coming: dict[object, weakref.ref[Guard]] = {}  # `with` statements about to enter
        self._unpaired: dict[object, list[H]] = {}  # entered without a guard, by whom
        self._weakly = weakref.ref(self)

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._want.name

    def _patience(self, blocking: bool, timeout: float | None) -> float:
        """How long an acquire waits: -1 for ever. Without a timeout the constructor's applies."""
        if not isinstance(blocking, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Misconfigured(
                f"blocking is True or False, not {blocking!r:.80}; a time limit is "
                f"acquire(timeout={blocking!r:.80})"
            )
        if timeout is None:
            return self._want.timeout if blocking else 0.0
        timeout = checked_timeout(timeout)
        if not blocking and timeout > 0:
            raise Misconfigured("a try that does not block cannot have a timeout")
        return timeout

    def _context(self) -> object:
        return self._client._current.port.context()

    def _expect(self, guard: weakref.ref[Guard]) -> None:
        self._coming[self._context()] = guard

    def _keep(self, lease: H, entering: bool, coming: weakref.ref[Guard] | None) -> None:
        """From here on the lock object keeps the lease alive, and a `with` is watched."""
        context = lease._taker = self._context()
        guard = None if coming is None else coming()
        if guard is not None:
            guard.watch(lease)
        else:
            # The keeper notices if nobody can reach this lease any more. Not by a `__del__`:
            # Python swallows a Ctrl-C that strikes inside one.
            lease._hold.watch(lease, lease._share, lease._engine.keeper.orphans.append)
            if entering:
                self._unpaired.setdefault(context, []).append(lease)
        if len(self._leases) >= self._sweep_at:
            for old in list(self._leases):
                if old._hold.end:
                    self._leases.pop(old, None)
            self._sweep_at = max(16, 2 * len(self._leases))
        self._leases[lease] = context

    def _forget(self, acquisition: Taking) -> None:
        """An acquire that failed or was interrupted leaves nothing here either."""
        for lease in reversed(list(self._leases)):
            if lease._share is acquisition:
                self._leases.pop(lease, None)
        for context, stack in list(self._unpaired.items()):
            if stack and stack[-1]._share is acquisition:
                self._pop(context)

    def _drop(self, lease: Any) -> None:
        self._leases.pop(lease, None)

    def _newest(self) -> H:
        """The calling thread's or task's newest lease that was not released."""
        context = self._context()
        for lease in reversed(list(self._leases)):  # a copy in one step: finalisers take some away
            if self._leases.get(lease) is context and lease._hold.end != RELEASED:
                return lease
        raise NotHeld(
            f"this thread or task holds no lease of this lock object for {self.name!r}. A lease "
            "taken elsewhere is released by its own release()"
        )

    def _last_entered(self) -> H:
        """Whose exit this is when no guard can tell, as under `contextlib.ExitStack`: the last one
        that this thread or task entered so; if it entered none, that of the only one who did."""
        context = self._context()
        if context not in self._unpaired and len(self._unpaired) == 1:
            context = next(iter(self._unpaired))
        if not self._unpaired.get(context):
            raise NotHeld(f"{self.name!r} was not entered by this thread or task, or left before")
        return self._pop(context)

    def _pop(self, context: object) -> H:
        stack = self._unpaired[context]
        lease = stack.pop()
        if not stack:
            self._unpaired.pop(context, None)
        return lease

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ttl={self._want.ttl:g}>"


def refused(want: Want, busy: Busy, timeout: float, own: Hold | None = None) -> AcquireTimeout:
    if own is not None:
        vainly = f" for {timeout:g} s, while it waited for itself" if timeout > 0 else ""
        return AcquireTimeout(
            f"{want.name!r} was held by this very thread or task{vainly}. {advice(own, want)}"
        )
    held = f"held by {busy.holder}" if busy.holder else "busy"
    ahead = f", {busy.ahead} in line before us" if busy.ahead else ""
    waited = f"for {timeout:g} s" if timeout > 0 else "at the moment (we did not wait)"
    return AcquireTimeout(
        f"{want.name!r} was {held}{ahead} {waited}. Wait longer with timeout=, or do without it now"
    )


def _lost(hold: Hold, reason: str) -> LeaseLost:
    name = hold.claim.name
    return LeaseLost(
        f"the lease of {name!r} cannot be relied on: {reason}",
        name=name,
        reason=reason,
        fence=hold.fence,
    )
