"""`sqlite:///path`: which file a URL means, what it promises, and the two ways into it.

Contract: `core/backend.py`. The blocking port enters the database in the caller's own thread. The
asyncio port hands each request to one thread for the database, in order: nothing that could wait
for a disk or another process runs in the event loop.
Partners: `../local.py`, the client's half; `site.py`; `store.py`, the server's half.
"""

from __future__ import annotations

import functools
import queue
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.backends.local import Call, LocalBackend
from holdfast.backends.sqlite import place, sites
from holdfast.backends.sqlite.site import Site
from holdfast.backends.sqlite.store import Store
from holdfast.backends.url import Option, Url
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.errors import Unavailable
from holdfast.ports.bare import Thread
from holdfast.types import Capabilities, LockInfo, Mode, Unknown

__all__ = ["SqliteBackend"]

T = TypeVar("T")


class SqliteBackend(LocalBackend[Store]):
    options: tuple[Option, ...] = ()
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="process",
        failover="nothing while the host is up; a restart of the host ends every lease",
    )

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._joined = False
        self._worker: Worker | None = None
        self._forgotten: weakref.finalize[Any, Any]

    @classmethod
    def from_url(cls, url: Url) -> SqliteBackend:
        return cls(place.resolve(url))

    def open(self, port: Port, signals: Signals) -> None:
        super().open(port, signals)
        self._site = sites.join(self._path, _furnish)
        self._joined = True
        self.store = self._site.store
        if port.asynchronous:
            worker = Worker(self._site, port)
            self._link = self._worker = worker
            self._forgotten = weakref.finalize(self, worker.abandon)
        else:
            self._forgotten = weakref.finalize(self, sites.abandon, self._site)
        self._forgotten.atexit = False

    def _enter(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        return self._site.run(deadline, request)

    # -- operators --------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._path.is_file()

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        return await super().inspect(prefix, exact, deadline) if await self._there(deadline) else []

    async def evict(self, name: str, deadline: float) -> int:
        return await super().evict(name, deadline) if await self._there(deadline) else 0

    async def _there(self, deadline: float) -> bool:
        """Looking makes no store: with a typo in the URL all would look free, and stay behind."""
        if self._site.begun:
            return True
        if self._worker is None:
            return self.exists()
        return await self._worker.do(deadline, self.exists) is not False

    async def close(self) -> None:
        await super().close()
        if not self._joined:
            return
        if self._worker is not None:
            await self._worker.close(self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        if self._joined:
            self._joined = False
            self._forgotten.detach()
            sites.leave(self._site)


def _furnish(site: Site) -> None:
    site.store = Store(site)


class Job(Generic[T]):
    """One request on its way to the thread. Begun, or given up: who takes `fate` decides."""

    def __init__(self, work: Callable[[], T], done: Callable[[], None]) -> None:
        self.work = work
        self.done = done
        self.fate = [True]
        self.answer: T | Unknown = Unknown("the disk did not answer")
        self.error: BaseException | None = None

    def decide(self) -> bool:
        try:
            return self.fate.pop()
        except IndexError:
            return False


class Worker:
    """In a thread of its own, in order, so that a withdrawal never overtakes its attempt."""

    def __init__(self, site: Site, port: Port) -> None:
        self._site = site
        self._port = port
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._thread: Thread | None = None

    def caller(self, call: Call) -> Call:
        return call

    async def ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        return await self.do(deadline, lambda: self._site.run(deadline, request))

    def after(self, work: Callable[[], None]) -> None:
        self._jobs.put(Job(work, _nobody))

    async def close(self, leave: Callable[[], None]) -> None:
        await self.do(self._port.now() + 5.0, leave)
        self._jobs.put(None)

    def abandon(self) -> None:
        """The client was collected, and nobody closed it."""
        sites.abandon(self._site)
        self._jobs.put(None)

    async def do(self, deadline: float, work: Callable[[], T]) -> T | Unknown:
        answered = self._port.event()
        job = Job(work, answered.set)
        self._jobs.put(job)
        try:
            self._start()
            # Whoever has begun by the deadline gives up at it: only a disk can take longer.
            await answered.wait(deadline + 0.25)
        finally:
            given_up = job.decide()
        if given_up:
            raise Unavailable(
                f"{self._site.path} is busy: its requests before this one are still waiting"
            )
        if job.error is not None:
            raise job.error
        return job.answer

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        # Known before it is started: Ctrl-C must not make two.
        self._thread = Thread(functools.partial(_work, self._jobs), "holdfast-sqlite")
        self._thread.start()


def _work(jobs: queue.SimpleQueue[Job[Any] | None]) -> None:
    """Not a method: the thread must not keep alive whom it works for."""
    while (job := jobs.get()) is not None:
        if job.decide():
            try:
                job.answer = job.work()
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                job.error = error
            job.done()
        del job


def _nobody() -> None:
    pass
