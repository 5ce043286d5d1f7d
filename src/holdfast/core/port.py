"""The port: everything the core needs from the world it runs in.

Contract: the core is written once, as `async def`, and awaits only what a port gives it. A thread
port blocks inside these calls and never suspends, so sync code drives the same coroutine with a
single `send(None)`; an asyncio port suspends; the explorer's port does both under a fake clock.
Partners: `ports/thread.py`, `ports/asyncio.py`, `testing/world.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol

from holdfast.errors import Unavailable, WouldDeadlock

__all__ = ["Event", "Main", "NoThread", "Port", "Task", "check_may_wait", "why_not"]

Main = Callable[[], Coroutine[Any, Any, None]]


class NoThread(Unavailable, RuntimeError):
    """What has to run beside the caller cannot be started: this process has as many threads as it
    may have, or the interpreter is `exiting`."""

    def __init__(self, name: str, error: object, exiting: bool = False) -> None:
        why = (
            "the interpreter is exiting"
            if exiting
            else "this process, its user or its container has as many threads as it may have; let "
            "some end, or raise the limit (ulimit -u, pids.max)"
        )
        super().__init__(f"no thread for {name} can be started ({error}): {why}")
        self.exiting = exiting
        self._told = name, str(error), exiting

    def __reduce__(self) -> tuple[object, ...]:
        # The default calls us with the message alone, which ends a whole pool of processes.
        return NoThread, self._told


def why_not(start: Callable[[], None]) -> NoThread | None:
    """Start something; None: it runs. (For who holds a mutex: Python 3.12 leaves that locked when
    an interrupt strikes, as our tests have it do, at the line of a `try` inside of its `with`.)"""
    try:
        start()
    except NoThread as error:
        return error
    return None


class Event(Protocol):
    """A flag that one side sets and the other waits for."""

    def set(self) -> None:
        """Raise the flag. May be called from any thread and never blocks."""

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, deadline: float | None) -> bool:
        """Until the flag is up (True), or `deadline` on the port's clock has passed (False)."""
        ...


class Task(Protocol):
    """Something that runs in the background once it is started."""

    def start(self) -> None:
        """Raises `NoThread`, and has not begun, when that cannot be."""

    @property
    def alive(self) -> bool: ...

    async def join(self, deadline: float) -> bool:
        """Wait until it has ended (True) or the deadline passed (False)."""
        ...


class Port(Protocol):
    """Time, waiting and identity. The whole list: if the core needs more, it is added here."""

    asynchronous: bool
    """Which of its two transports a backend should use."""

    def now(self) -> float:
        """Seconds that also count while the host is suspended (CLOCK_BOOTTIME where there is)."""
        ...

    def random(self) -> float:
        """In [0, 1), for jitter: never for anything that must be unguessable."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Excludes the port's other threads for a few lines that never wait; usable again."""
        ...

    def nested(self) -> bool:
        """Whether this is called by a finaliser, inside of another call of this library or with the
        mutex in hand. Whoever is must wait for nothing: that may wait for what it interrupted."""
        ...

    def task(self, main: Main, farewell: Main, name: str) -> Task:
        """`main`, to be run beside the caller. It does not keep the interpreter from exiting:
        `farewell` is run when the interpreter exits or the event loop shuts down before it ends."""
        ...

    def waits(self) -> None:
        """The caller begins to wait for a lock: what it holds up by that is logged, once."""

    def prepare_call(self) -> None:
        """Before somebody relies on `call`: `NoThread` if there could be nobody who calls."""

    def call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Run a user's callback soon, apart from the caller, so that it can delay nobody."""

    def context(self) -> object:
        """The calling thread or task, as an object that can be weakly referenced and is never
        reused: thread idents are, which is why they are not good enough here."""
        ...

    def incarnation(self) -> int:
        """A number that differs in a forked child (law 8)."""
        ...


def check_may_wait(port: Port, name: str) -> None:
    """Before this name is asked for."""
    if port.nested():
        raise WouldDeadlock(
            f"{name!r} is asked for by a finaliser, or by a generator that the garbage collector "
            "closes, inside of another call of holdfast in the same thread: that waits for this "
            "one, and this one might wait for that. Acquire nothing in finalisers"
        )
