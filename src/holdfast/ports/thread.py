"""The thread port: the core's coroutines block where they wait, and never suspend.

Contract: `drive` runs a coroutine to its end with one `send(None)`; no event loop, no thread hop.
Partner: `ports/bare.py`, whose thread and event it has.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.core.port import Main, NoThread
from holdfast.ports import clock
from holdfast.ports.bare import Thread, ThreadEvent
from holdfast.ports.inside import enter, nested, outside

__all__ = ["ThreadPort", "drive", "outside"]

T = TypeVar("T")
log = logging.getLogger("holdfast")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, blocking. Costs about as much as a function call."""
    try:
        enter(coroutine)
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        coroutine.close()  # an interrupt before it began: it must not linger
        raise
    coroutine.close()
    raise RuntimeError("a coroutine of the core suspended on the thread port: this is a bug")


class ThreadTask:
    __slots__ = ("_farewell", "_thread")

    def __init__(self, main: Main, farewell: Main, name: str) -> None:
        def body() -> None:
            try:
                outside(lambda: drive(main()))
            finally:
                _farewells.pop(id(self), None)

        self._thread = Thread(body, name)
        self._farewell = farewell

    def start(self) -> None:
        _farewells[id(self)] = clock.incarnation(), self._farewell
        try:
            self._thread.start()
        except BaseException:  # there can be no thread, or Ctrl-C
            if not self.alive:
                _farewells.pop(id(self), None)
            raise

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def join(self, deadline: float) -> bool:
        self._thread.join(max(0.0, deadline - clock.now()))
        return not self._thread.is_alive()


_farewells: dict[int, tuple[int, Main]] = {}
"""What still runs in the background, and what to do instead when the interpreter exits."""


def _exit() -> None:
    for incarnation, farewell in list(_farewells.values()):
        if incarnation != clock.incarnation():
            continue  # law 8: a child has only inherited the table
        try:
            drive(farewell())
        except Exception:
            log.exception("giving back leases at exit failed")


atexit.register(_exit)


class _Context(threading.local):
    """One token for each thread, which dies with it (idents and dummy threads are reused)."""

    def __init__(self) -> None:
        self.token = _Token()


class _Token:
    __slots__ = ("__weakref__",)


class ThreadPort:
    asynchronous = False

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._context = _Context()
        self._cautioned = False
        self.now = clock.now
        self.random = random.random
        self.event = ThreadEvent
        self.incarnation = clock.incarnation

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))  # noqa: ASYNC251 - blocking is what this port does

    def mutex(self) -> threading.RLock:
        return self._mutex

    def nested(self) -> bool:
        return nested() or self._mutex._is_owned()  # type: ignore[attr-defined] # as Condition does

    def context(self) -> object:
        return self._context.token

    def task(self, main: Main, farewell: Main, name: str) -> ThreadTask:
        return ThreadTask(main, farewell, name)

    def waits(self) -> None:
        asyncio = sys.modules.get("asyncio")  # if it was imported: not by us
        if asyncio and not self._cautioned and asyncio._get_running_loop() is not None:
            self._cautioned = True
            log.warning(
                "a blocking client waits for a lock in a thread that runs an event loop: all tasks "
                "of that loop stand still meanwhile. Use holdfast.aio there"
            )

    def prepare_call(self) -> None:
        _callers.stand_by()

    def call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        _callers.submit(callback, argument)


class _Callers:
    """A few daemon threads for users' callbacks: one that blocks delays neither the keeper nor, as
    long as there are few of them, the others; and thousands of losses do not start thousands.

    One stands by from the first time that somebody wants to be called: when a lease is lost the
    process may have no more threads, and the keeper must not wait for a callback."""

    MOST = 8

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[Any], Any], Any]] = queue.SimpleQueue()
        self._idle = 0
        self._threads = 0
        self._standing: ThreadTask | None = None
        self._mutex = threading.RLock()

    def stand_by(self) -> None:
        if self._stands():
            return
        with self._mutex:
            if not self._stands():
                self._standing = ThreadTask(self._stand, _nothing, "holdfast-on-lost")
                self._standing.start()

    def _stands(self) -> bool:
        standing = self._standing
        return standing is not None and standing.alive

    async def _stand(self) -> None:
        while True:
            _called(*self._work.get())

    def submit(self, callback: Callable[[Any], Any], argument: Any) -> None:
        self._work.put((callback, argument))
        with self._mutex:
            if self._idle:
                self._idle -= 1  # that one is spoken for
                return
            if self._threads >= self.MOST:
                return
            self._threads += 1
        try:
            Thread(self._run, "holdfast-on-lost").start()
        except NoThread as error:
            with self._mutex:
                self._threads -= 1
            # Who stands by comes to it. At an exit it may not: call from here, as when the caller
            # is no keeper, and nobody was asked to stand by.
            if error.exiting or not self._stands():
                self._drain()

    def _run(self) -> None:
        while True:
            self._drain()
            with self._mutex:
                if not self._work.empty():
                    continue
                self._idle += 1
            try:
                item = self._work.get(timeout=5)
            except queue.Empty:
                with self._mutex:
                    if self._idle:
                        self._idle -= 1
                        self._threads -= 1
                        return
                continue  # somebody counts on us
            _called(*item)

    def _drain(self) -> None:
        while not self._work.empty():
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                return
            _called(*item)


def _called(callback: Callable[[Any], Any], argument: Any) -> None:
    try:
        outside(lambda: callback(argument))
    except BaseException:  # sys.exit() in a callback must not end the thread
        log.exception("an on_lost callback raised")


async def _nothing() -> None:
    """What was called for at the exit is done by who exits."""


_callers = _Callers()


def _forked() -> None:
    global _callers
    _callers = _Callers()  # law 8: its threads stayed with the parent
    _farewells.clear()


os.register_at_fork(after_in_child=_forked)
