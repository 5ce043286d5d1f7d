"""The clock and the process's identity, shared by both ports.

Contract: `now` counts while the host is suspended where the kernel offers it (law 1), and
`incarnation` differs in a forked child (law 8).
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable

__all__ = ["first_use_after_fork", "incarnation", "now"]

now: Callable[[], float]
if hasattr(time, "CLOCK_BOOTTIME"):
    now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # no Python frame
else:  # pragma: no cover - macOS and others: a suspend is then noticed late
    now = time.monotonic

_forks = 0
_mutex = threading.Lock()


def incarnation() -> int:
    return _forks


def first_use_after_fork() -> threading.Lock:
    """Lets one thread of a child rebuild what it inherited, while the others wait."""
    return _mutex


def _forked() -> None:
    global _forks, _mutex
    _forks += 1
    _mutex = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forked)
