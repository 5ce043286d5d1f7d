"""One `with` statement: which lease it entered, and what happens if it vanishes.

Contract: `with lock:` binds `lock.__exit__` before it calls `lock.__enter__`, and keeps what it got
until it is left. So `__exit__` is a descriptor that makes a new guard each time: the guard is that
very statement, knows its own lease however many others the same thread has entered, and dies with
the statement.

Hazard: CPython delivers signals at the first instruction of a Python function, so Ctrl-C can strike
after `__exit__` was called and before its `try`. No Python code can be in time there. The death of
the guard is noticed by a weak reference whose callback is `deque.append`, which is written in C and
not interrupted; the keeper gives the lease back at its next look. (`contextlib.ExitStack` asks the
class for `__exit__`, not the lock: there, that one instruction remains.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Exit", "Guard"]


class Guard:
    """What one `with` statement calls at its end, once."""

    __slots__ = ("__weakref__", "entered", "lease")

    def __init__(self, entered: Any) -> None:
        self.entered = entered  # the lock, or the lease, that stands behind `with`
        self.lease: Any = None

    def __call__(self, kind: Any, error: Any, trace: Any) -> Any:
        lease, self.lease = self.lease, None
        if lease is None:  # called by hand: lock.__exit__(...)
            lease = self.entered._last_entered()
        # Handed on, so that the frame of an asynchronous exit keeps it alive until it is done.
        return self.entered._exit(lease, kind, error, trace, self)

    @property
    def _taker(self) -> object:
        """The thread or task that is inside."""
        return None if self.lease is None else self.lease._taker

    def watch(self, lease: Any) -> None:
        """From now on this statement is inside the lease."""
        self.lease = lease
        lease._hold.watch(self, lease._share, lease._engine.keeper.orphans.append)


class Exit:
    """`__exit__` or `__aexit__` of a lock and of a lease."""

    def __get__(self, entered: Any, owner: type) -> Callable[..., Any]:
        if entered is None:  # contextlib.ExitStack takes it from the class
            return _exit_last
        guard = Guard(entered)
        # Weakly: if this is no `with` statement, there must be nothing for __enter__ to find.
        entered._expect(weakref.ref(guard))
        return guard


def _exit_last(entered: Any, kind: Any, error: Any, trace: Any) -> Any:
    return entered._exit(entered._last_entered(), kind, error, trace, None)
