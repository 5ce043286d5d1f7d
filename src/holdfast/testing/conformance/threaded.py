"""The blocking API in the clothes of the asyncio one, so that each test is written once.

Contract: tests are written against `holdfast.aio`. On the sync port they get the same objects made
of `holdfast.sync`: whatever the asyncio API awaits runs in a thread, and what it does not await is
called directly. Every asyncio task of a test has *its own* thread for as long as the task lives, so
what a backend or the core knows about threads is tested as what it knows about tasks.

Which members are awaited is read off the asyncio classes: a skin that forgot one fails here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from holdfast import aio, sync
from holdfast.skins.task import once as task_once
from holdfast.skins.thread import once as thread_once

__all__ = ["Threaded", "in_thread", "wrapped"]

T = TypeVar("T")

MIRRORS: dict[type, type] = {
    sync.Locks: aio.Locks,
    sync.Lock: aio.Lock,
    sync.RWLock: aio.RWLock,
    sync.Semaphore: aio.Semaphore,
    sync.Lease: aio.Lease,
    sync.Permit: aio.Permit,
    sync.LostEvent: aio.LostEvent,
    sync.MultiLock: aio.MultiLock,
    sync.MultiLease: aio.MultiLease,
    sync.Stripes: aio.Stripes,
    sync.AnyStripe: aio.AnyStripe,
    sync.StripeLease: aio.StripeLease,
    sync.Once: aio.Once,
    thread_once.ValueLock: task_once.ValueLock,
    thread_once.Using: task_once.Using,
    sync.Election: aio.Election,
    sync.Leadership: aio.Leadership,
    sync.Observation: aio.Observation,
    sync.Latch: aio.Latch,
    sync.Barrier: aio.Barrier,
    sync.Optimistic: aio.Optimistic,
}

_END = object()


class _Worker:
    """The thread of one task: runs what it is given, one call after the other."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a call that never returns fails its test and must not also keep pytest alive.
        thread = threading.Thread(target=self._main, name=f"of {task.get_name()}", daemon=True)
        thread.start()
        task.add_done_callback(lambda _: self._inbox.put(None))

    def _main(self) -> None:
        while (job := self._inbox.get()) is not None:
            job()
            job = None  # keeps no result alive while it waits for more

    async def run(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def deliver(setter: Callable[[Any], None], outcome: Any) -> None:
            if not answer.done():
                setter(outcome)

        def job() -> None:
            try:
                outcome, setter = call(), answer.set_result
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits
                outcome, setter = error, answer.set_exception  # type: ignore[assignment]
            try:
                loop.call_soon_threadsafe(deliver, setter, outcome)
            except RuntimeError:
                pass  # the test is over, and its loop closed

        self._inbox.put(job)
        return await answer


_workers: WeakKeyDictionary[asyncio.Task[Any], _Worker] = WeakKeyDictionary()


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in the thread that belongs to the current task."""
    task = asyncio.current_task()
    assert task is not None
    worker = _workers.get(task)
    if worker is None:
        worker = _workers[task] = _Worker(task)
    return await worker.run(call)


class Threaded:
    """One object of the blocking API, behaving like its mirror in `holdfast.aio`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._mirror = MIRRORS[type(inner)]
        self._statements: list[tuple[object, Generator[Any, None, None]]] = []

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if not inspect.isroutine(member):
            return wrapped(member)
        if inspect.iscoroutinefunction(getattr(self._mirror, name, None)):
            return self._awaited(member)

        @functools.wraps(member)
        def direct(*args: Any, **kwargs: Any) -> Any:
            return wrapped(member(*args, **kwargs))

        return direct

    @staticmethod
    def _awaited(member: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(member)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return wrapped(await in_thread(functools.partial(member, *args, **kwargs)))

        return call

    async def __aenter__(self) -> Any:
        statement = _with(self._inner)
        entered = await in_thread(lambda: next(statement))
        self._statements.append((asyncio.current_task(), statement))
        return wrapped(entered)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        task = asyncio.current_task()
        mine = [pair for pair in self._statements if pair[0] is task]
        self._statements.remove(mine[-1])
        statement = mine[-1][1]
        try:
            await in_thread(lambda: _leave(statement, error))
        except BaseException as raised:
            if raised is not error:
                raise
        return False

    def __aiter__(self) -> Threaded:
        return self

    async def __anext__(self) -> Any:
        item = await in_thread(lambda: next(self._inner, _END))
        if item is _END:
            raise StopAsyncIteration
        return wrapped(item)

    def __bool__(self) -> bool:
        return bool(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)


def _with(inner: Any) -> Generator[Any, None, None]:
    """A real `with` statement, entered and left by the thread that runs this generator."""
    with inner as entered:
        yield entered


def _leave(statement: Generator[Any, None, None], error: BaseException | None) -> None:
    if error is None:
        next(statement, None)
    else:
        statement.throw(error)  # comes back here: no lock swallows what its body raised


def wrapped(value: Any) -> Any:
    return Threaded(value) if type(value) in MIRRORS else value
