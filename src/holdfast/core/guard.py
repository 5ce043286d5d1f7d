"""One `with` statement: which lease it entered, and what happens if it vanishes.

Contract: `with lock:` binds `lock.__exit__` before it calls `lock.__enter__`, and keeps what it got
until it is left. So `__exit__` is a descriptor that makes a new guard each time: the guard is that
very statement, knows its own lease however many others the same thread has entered, and dies with
the statement.

Hazard: CPython delivers signals at the first instruction of a Python function, so Ctrl-C can strike
after `__exit__` was called and before its `try`. No Python code can be in time there. The death of
the guard is noticed by a weak reference whose callback is `deque.append`, which is written in C and
not interrupted; the keeper gives the lease back at its next look.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Exit", "Guard"]


class Guard:
    """What a `with` statement calls at its end."""

    __slots__ = ("__weakref__", "lease", "lock")

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.lease: Any = None

    def __call__(self, kind: Any, error: Any, trace: Any) -> Any:
        lease = self.lease
        if lease is None:  # called by hand: lock.__exit__(...)
            lease = self.lock._last_entered()
        return self.lock._exit(lease, kind, error, trace)


class Exit:
    """`__exit__` or `__aexit__` of a lock."""

    def __get__(self, lock: Any, owner: type) -> Callable[..., Any]:
        if lock is None:  # contextlib.ExitStack takes it from the class
            return _exit_last
        guard = Guard(lock)
        # Weakly: if this was no `with` statement, there must be nothing for __enter__ to find.
        lock._coming[lock._client._current.port.context()] = weakref.ref(guard)
        return guard


def _exit_last(lock: Any, kind: Any, error: Any, trace: Any) -> Any:
    return lock._exit(lock._last_entered(), kind, error, trace)
