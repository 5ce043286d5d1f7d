"""Whether a call of this library is made inside of another one, in the same thread: by a finaliser.

Hazard, shown by runs: the garbage collector runs wherever it likes, also in a thread that has a
mutex, stands in a line, or reads what others wait for. There it may close a generator that lies
inside of a `with lock:`, and what that release waited for would wait for the very call that it
interrupted. So nothing is waited for there: `Port.nested`.

Nobody takes himself off the list at his end: an interrupt might keep him from it. Each says whether
he still runs, and who comes next takes those off who do not.
Partners: `ports/thread.py`, which drives; `ports/bare.py`, whose threads others rely on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["enter", "nested", "outside", "serve"]

T = TypeVar("T")


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[Any] = []


class _Service:
    """In the place of a coroutine that runs."""

    cr_running = True


_calls = _Calls()
_SERVICE = _Service()


def enter(coroutine: Any) -> None:
    """It is about to run in this thread."""
    stack = _calls.stack
    while stack and not stack[-1].cr_running:
        stack.pop()
    stack.append(coroutine)


def nested() -> bool:
    """Whether who asks was entered while another one runs, in this thread."""
    stack = _calls.stack
    return len(stack) > 1 and sum(call.cr_running for call in stack) > 1


def serve() -> None:
    """From now on others rely on this thread: whatever is called in it is nested."""
    _calls.stack = [_SERVICE]


def outside(call: Callable[[], T]) -> T:
    """What a user wants to be called by us may wait like any other code of theirs."""
    stack, _calls.stack = _calls.stack, []
    try:
        return call()
    finally:
        _calls.stack = stack
