"""Every error holdfast raises, and what each one means.

Contract: a message says what happened, what it means for the caller and what to do next; it never
contains an owner id or a password. Busy (`AcquireTimeout`) and unreachable (`Unavailable`) are
never confused. Where Python has a built-in error for the same thing, ours is also that one, so
that code written against `threading.Lock` or `socket` keeps working.
"""

from __future__ import annotations

__all__ = [
    "AcquireTimeout",
    "BrokenBarrier",
    "Closed",
    "HoldfastError",
    "LeaseLost",
    "Misconfigured",
    "NotHeld",
    "StaleFence",
    "Unavailable",
    "Unsupported",
    "WouldDeadlock",
]


class HoldfastError(Exception):
    """The root: catch this to catch everything holdfast raises on purpose."""


class AcquireTimeout(HoldfastError, TimeoutError):
    """The store answered: somebody else held the lock for as long as we were willing to wait."""


class Unavailable(HoldfastError, ConnectionError):
    """The store could not be reached, or did not answer in time. Says nothing about who holds."""


class LeaseLost(HoldfastError):
    """The lease ended while its holder still believed in it: stop touching the guarded resource."""

    def __init__(self, message: str, *, name: str, reason: str, fence: int | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason
        self.fence = fence

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickles only positional arguments, and losses do travel between processes.
        return _lease_lost, (self.args[0], self.name, self.reason, self.fence)


def _lease_lost(message: str, name: str, reason: str, fence: int | None) -> LeaseLost:
    return LeaseLost(message, name=name, reason=reason, fence=fence)


class StaleFence(HoldfastError):
    """A write came with an older fencing token than the resource has seen: nothing was written."""

    def __init__(
        self, message: str, *, resource: str, token: int, highest: int | None = None
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.token = token
        self.highest = highest

    def __reduce__(self) -> tuple[object, ...]:
        return _stale_fence, (self.args[0], self.resource, self.token, self.highest)


def _stale_fence(message: str, resource: str, token: int, highest: int | None) -> StaleFence:
    return StaleFence(message, resource=resource, token=token, highest=highest)


class NotHeld(HoldfastError, RuntimeError):
    """`lock.release()` by a thread or task that holds no lease of this lock object."""


class Misconfigured(HoldfastError, ValueError):
    """An argument, URL or option that cannot work, found before anything was asked of the store."""


class Unsupported(HoldfastError):
    """This backend cannot do what was asked; the message names one that can."""


class WouldDeadlock(HoldfastError, RuntimeError):
    """Waiting for this would be waiting for oneself: the caller reads what it asks to write."""


class Closed(HoldfastError, RuntimeError):
    """The client was closed; make a new one with `connect()`."""


class BrokenBarrier(HoldfastError, RuntimeError):
    """Not all parties met: one died, left or waited in vain, or somebody reset the barrier."""
