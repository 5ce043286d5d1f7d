"""The asyncio port: the core's coroutines suspend on futures of the running loop.

Contract: bound to one event loop, the one that first uses it. `Event.set` may come from any thread
(a thread port's client may hand a lock over to a task); everything else belongs to the loop.
Hazard: deadlines are on CLOCK_BOOTTIME and the loop's timers are not, so each wait is converted
when it starts; the keeper's tick bounds how late a suspend is noticed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import logging
import random
from collections.abc import Callable
from typing import Any

from holdfast.core.port import Main
from holdfast.errors import Misconfigured
from holdfast.ports import clock

__all__ = ["AsyncioPort"]

log = logging.getLogger("holdfast")

# asyncio imports it when a host is first looked up. A fork in that moment leaves the child with an
# import that nobody ends, so it is done before there is anything to fork.
ThreadPoolExecutor = concurrent.futures.ThreadPoolExecutor


class AsyncioEvent:
    __slots__ = ("_flag", "_port", "_waiters")

    def __init__(self, port: AsyncioPort) -> None:
        self._port = port
        self._flag = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        self._flag = True
        if self._waiters:
            self._port.soon(self._wake)

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, deadline: float | None) -> bool:
        if self._flag:
            return True
        loop = self._port.loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None
        if deadline is not None:
            timer = loop.call_later(max(0.0, deadline - clock.now()), _done, waiter)
        self._waiters.append(waiter)
        try:
            # set() may have come from another thread before we were on the list.
            if not self._flag:
                await waiter
            return self._flag
        finally:
            self._waiters.remove(waiter)
            if timer is not None:
                timer.cancel()


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncioTask:
    __slots__ = ("_begun", "_farewell", "_main", "_name", "_port", "_task")

    def __init__(self, port: AsyncioPort, main: Main, farewell: Main, name: str) -> None:
        self._port = port
        self._main = main
        self._farewell = farewell
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._begun = False

    def start(self) -> None:
        self._port.loop()
        self._port.soon(self._start)  # a finaliser may ask for it from another thread

    def _start(self) -> None:
        # An empty context: the task must not live on in whatever request happened to start it.
        loop = self._port.loop()
        self._task = loop.create_task(self._body(), name=self._name, context=contextvars.Context())
        self._task.add_done_callback(self._ended)

    async def _body(self) -> None:
        self._begun = True
        try:
            await self._main()
        except asyncio.CancelledError:
            await self._farewell()
            raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._begun:  # cancelled before its first step: nothing of it saw that
            self._start()

    @property
    def alive(self) -> bool:
        return self._task is None or not self._begun or not self._task.done()

    async def join(self, deadline: float) -> bool:
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task():
            self._port.check_loop()
            await asyncio.wait([task], timeout=max(0.0, deadline - clock.now()))
        return not self.alive


class AsyncioPort:
    asynchronous = True

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: set[asyncio.Task[Any]] = set()
        self._mutex = contextlib.nullcontext()
        self.now = clock.now
        self.random = random.random
        self.incarnation = clock.incarnation

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this port belongs to; the running one at first use."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def check_loop(self) -> None:
        running = asyncio.get_running_loop()
        if running is not self._loop and running is not self.loop():
            raise Misconfigured(
                "this client belongs to another event loop, where its renewals run; "
                "make one client per loop, inside it: `async with holdfast.aio.connect(...)`"
            )

    def soon(self, callback: Callable[[], object]) -> None:
        """Run a callback in the loop: at once when we are in it, else from outside."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return  # nobody has waited yet, or nobody does any more
        if asyncio._get_running_loop() is loop:
            callback()
            return
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed, and with it whoever waited
            pass

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def event(self) -> AsyncioEvent:
        return AsyncioEvent(self)

    def nested(self) -> bool:
        return False  # no finaliser awaits anything

    def mutex(self) -> contextlib.AbstractContextManager[None]:
        return self._mutex

    def context(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:  # no loop is running: somebody only looks at an attribute
            return None

    def task(self, main: Main, farewell: Main, name: str) -> AsyncioTask:
        return AsyncioTask(self, main, farewell, name)

    def waits(self) -> None:
        """Only its own task."""

    def prepare_call(self) -> None:
        """The loop is there."""

    def call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        def run() -> None:
            try:
                outcome = callback(argument)
            except Exception:
                log.exception("an on_lost callback raised")
                return
            if inspect.isawaitable(outcome):
                task = self.loop().create_task(_awaited(outcome), name="holdfast-on-lost")
                self._callbacks.add(task)  # the loop itself keeps only a weak reference
                task.add_done_callback(self._callbacks.discard)

        try:
            self.loop().call_soon_threadsafe(run)  # a loss may be noticed by any thread
        except RuntimeError:  # the loop is closed, and with it what the lease was for
            log.warning("an on_lost callback could not be called: the event loop is closed")


async def _awaited(outcome: Any) -> None:
    try:
        await outcome
    except Exception:
        log.exception("an on_lost callback raised")
