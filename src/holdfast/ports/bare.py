"""A thread and an event that are made of bare locks: those of `threading` wait where we must not.

Hazards, each shown by a run:
- `threading.Thread.start` waits until the new thread says that it is there, and whoever starts one
  mostly holds a mutex. Before it says so the garbage collector may run in the new thread, and close
  a generator that lies inside of a `with lock:`: that wants the same mutex, and nobody goes on.
- Ctrl-C inside of that wait, as of `threading.Event.wait`, comes out as "release unlocked lock": a
  `RuntimeError`, like that of a process which has as many threads as it may have.
- `threading.Event.set` takes a lock, and finalisers call it, which may run inside of it.
Partners: `ports/thread.py`, and the backends whose threads are their own.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

from holdfast.core.port import NoThread
from holdfast.ports import clock, inside

__all__ = ["Thread", "ThreadEvent"]


class ThreadEvent:
    """A gate: a bare lock that is held while the flag is down."""

    __slots__ = ("_flag", "_gate")

    def __init__(self) -> None:
        self._flag = False
        self._gate = _thread.allocate_lock()
        self._gate.acquire()

    def set(self) -> None:
        self._flag = True
        try:
            self._gate.release()
        except RuntimeError:  # it was open already
            pass

    def clear(self) -> None:
        self._flag = False
        self._gate.acquire(blocking=False)
        if self._flag:  # set() came between the two: it must not be swallowed
            self.set()

    def is_set(self) -> bool:
        return self._flag

    async def wait(self, deadline: float | None) -> bool:
        return self.block(deadline)

    def block(self, deadline: float | None) -> bool:
        try:
            while not self._flag:
                timeout = -1.0
                if deadline is not None:
                    timeout = min(deadline - clock.now(), threading.TIMEOUT_MAX)
                    if timeout <= 0:
                        return False
                self._gate.acquire(timeout=timeout)
            return True
        finally:
            if self._flag:  # pass it on: the gate stays open for whoever else waits
                self.set()


class _There(threading.Event):
    """What `threading.Thread` has its thread set and `start` wait for; who starts does not."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


class Thread(threading.Thread):
    """A daemon for whose beginning nobody waits. When `start` was interrupted it is alive, or never
    runs: who is first, it or who calls it off, takes its turn."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._started = _There()
        self._turn = _thread.allocate_lock()
        self._over = ThreadEvent()
        self._born: int | None = None  # in which process
        self._launched = False  # and it is not called off

    def start(self) -> None:
        """`NoThread`, and it never runs, when there can be none."""
        try:
            self._born = clock.incarnation()
            if sys.is_finalizing():  # before Python 3.12 it would be waited for, and never begin
                raise RuntimeError("it is too late")
            super().start()
            self._launched = True
        except BaseException as error:  # there can be no thread, or Ctrl-C
            self._turn.acquire(blocking=False)
            if isinstance(error, RuntimeError):
                raise NoThread(self.name, error, _exiting()) from error
            if isinstance(error, KeyError) and error.__context__ is not None:
                raise error.__context__ from None  # what `threading` takes for a failure to start
            raise

    def _bootstrap(self) -> None:
        """Called off, by an exception of somebody's signal handler: `threading` takes that for a
        failure to start, and forgets a thread that comes and looks for itself. Nobody's error."""
        try:
            super()._bootstrap()  # type: ignore[misc] # what the new thread runs
        except KeyError:
            if self._launched:
                raise

    def run(self) -> None:
        try:
            if self._turn.acquire(blocking=False):
                self._launched = True
                inside.serve()
                super().run()
        finally:
            self._over.set()

    def is_alive(self) -> bool:
        """From `start` on; not in a child that was forked. (Not asked of `threading`: before Python
        3.13 Ctrl-C inside of its answer makes a thread that runs look dead for ever.)"""
        return self._launched and self._born == clock.incarnation() and not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else clock.now() + timeout
        if (
            self.is_alive()
            and self is not threading.current_thread()
            and self._over.block(deadline)
        ):
            super().join(None if deadline is None else max(0.0, deadline - clock.now()))


def _exiting() -> bool:
    """Whether nothing keeps the interpreter any more. That its main thread has ended is not enough:
    it waits for all threads that are no daemons, which go on for as long as they like."""
    return sys.is_finalizing() or all(
        thread.daemon or not thread.is_alive() for thread in threading.enumerate()
    )
