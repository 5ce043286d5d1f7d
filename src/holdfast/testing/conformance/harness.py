"""What a test has in its hands, and how a test written once runs on both ports.

Contract: a theme's tests are `async def test_...(self, api)`, written against `holdfast.aio`; each
becomes two pytest tests, `[name-sync]` and `[name-aio]`. After each, whatever happened, the faults
are healed, the clients closed, and the store must be as empty as it was.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast, overload

import pytest

from holdfast import LockInfo, Mode, aio
from holdfast.ports import clock
from holdfast.testing.conformance.raw import Raw
from holdfast.testing.conformance.strategy import NotApplicable, Strategy
from holdfast.testing.conformance.threaded import Threaded, wrapped
from holdfast.types import ClaimInfo

__all__ = ["LONG", "PORTS", "Api", "Theme", "only_on", "refused", "take"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
AnyLock = aio.Lock | aio.Semaphore | aio.MultiLock | aio.AnyStripe
AnyLease = aio.Lease | aio.Permit | aio.MultiLease

PORTS = ("sync", "aio")

LONG = 8.0
"""Seconds to wait for what must happen: long enough for a slow machine, and shorter than a third of
the default ttl, at which waiters look by themselves, so that it does not hide a lost call."""

CALM = 0.75
"""Seconds: the least `short_ttl` for what is a multiple of it and must *not* have ended in a test,
however quick the store: it is the machine that is slow then."""


def only_on(port: str) -> Callable[[F], F]:
    """For what one of the ports has no notion of: a thread cannot be cancelled."""

    def decorate(test: F) -> F:
        test.ports = (port,)  # type: ignore[attr-defined]
        return test

    return decorate


class Theme:
    """A collection of tests; its coroutines are made into tests that pytest can run by itself."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _on_a_loop(test))


def _on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Theme, api: Api, **fixtures: Any) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(api.run(lambda: test(self, api=api, **fixtures)))
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return run


@overload
async def take(lock: aio.Lock, timeout: float = LONG) -> aio.Lease: ...
@overload
async def take(lock: aio.Semaphore, timeout: float = LONG) -> aio.Permit: ...
@overload
async def take(lock: aio.MultiLock, timeout: float = LONG) -> aio.MultiLease: ...
@overload
async def take(lock: aio.AnyStripe, timeout: float = LONG) -> aio.StripeLease: ...
async def take(lock: AnyLock, timeout: float = LONG) -> AnyLease:
    """Acquire what must be had within the time."""
    lease = await lock.acquire(timeout=timeout)
    assert lease is not None, f"{lock} was not granted within {timeout:g} s"
    return lease


async def refused(lock: AnyLock) -> bool:
    """Whether a try says no. One that says yes gives it back."""
    lease = await lock.acquire(blocking=False)
    if lease is not None:
        await lease.release()
    return lease is None


class Api:
    """One test's clients of one store, on one port."""

    def __init__(self, strategy: Strategy, port: str) -> None:
        self.strategy = strategy
        self.port = port
        self.url = strategy.url()
        self._clients: list[aio.Locks] = []
        self._raws: list[Raw] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.capabilities = strategy.backend(self.url).capabilities

    # -- time -------------------------------------------------------------------------------------

    @property
    def short(self) -> float:
        """A ttl for leases that shall end in this test."""
        return self.strategy.short_ttl

    @property
    def brief(self) -> float:
        """A ttl that can be outlasted in a test, and that a renewal can reach on a slow machine,
        where a process may stand still for a second or two."""
        return 4 * max(self.strategy.short_ttl, CALM)

    @property
    def often(self) -> float:
        """An interval of renewal at which a loss is noticed soon, however long the lease."""
        return self.strategy.short_ttl / 6

    @property
    def patience(self) -> float:
        """A `request_timeout` that a healthy store keeps, and that a test can sit out."""
        return 1.5 * max(self.strategy.short_ttl, CALM)

    def now(self) -> float:
        """The clock the leases live by."""
        return clock.now()

    async def pass_time(self, seconds: float) -> None:
        """Where nothing but time can bring something about, or show that it does not come."""
        end = self.now() + seconds
        while (left := end - self.now()) > 0:  # noqa: ASYNC110 - the loop has another clock
            await asyncio.sleep(left)

    async def until(self, happened: Callable[[], Awaitable[bool]], what: str) -> None:
        """For what no event tells: look again and again until it is so."""
        end = self.now() + LONG
        while not await happened():
            assert self.now() < end, f"{what}: not within {LONG:g} s"
            await asyncio.sleep(0.005)

    async def renewed(self, lease: AnyLease) -> None:
        """Until the keeper has extended this lease once more."""
        before = lease.remaining()

        async def longer() -> bool:
            nonlocal before
            last, before = before, lease.remaining()
            return before > last

        await self.until(longer, f"a renewal of {lease}")

    async def quiet(self, still: float) -> int:
        """How many requests the store was asked, when for so long there was none: what was under
        way has arrived."""
        last, since, end = self.strategy.requests(), self.now(), self.now() + still + LONG
        while self.now() < since + still:
            assert self.now() < end, f"there was always a request within {still:g} s"
            await asyncio.sleep(0.01)
            if (count := self.strategy.requests()) != last:
                last, since = count, self.now()
        return last

    # -- clients ----------------------------------------------------------------------------------

    def connect(self, *, port: str | None = None, **options: Any) -> aio.Locks:
        """A client of its own, with its own connections and keeper. On the sync port it is the
        blocking API behind the same face, which is why this says aio."""
        if (port or self.port) == "aio":
            client = self.strategy.aio_connect(self.url, **options)
        else:
            client = cast(aio.Locks, Threaded(self.strategy.connect(self.url, **options)))
        self._clients.append(client)
        return client

    @functools.cached_property
    def here(self) -> aio.Locks:
        """The client that most tests begin with."""
        return self.connect()

    @functools.cached_property
    def there(self) -> aio.Locks:
        """Somebody else's client: as far away as another process, for all the store knows."""
        return self.connect()

    def raw(self) -> Raw:
        """The protocol itself, without a client."""
        raw = Raw(self.strategy.backend(self.url), self.port)
        self._raws.append(raw)
        return raw

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Beside the test: a task, and on the sync port a thread of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    def function(self, work: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Any]:
        """A coroutine function of the test, as the API takes it: on the sync port a plain function
        that has the test's loop run it, and waits."""
        if self.port == "aio":
            return work
        loop = asyncio.get_running_loop()

        def call(*args: Any) -> T:
            running = asyncio.run_coroutine_threadsafe(work(*map(wrapped, args)), loop)
            return running.result()

        return call

    async def apart(self, work: Coroutine[Any, Any, T]) -> T:
        """In another task (and thread) than the test's own, to its end."""
        return await asyncio.wait_for(self.spawn(work), 2 * LONG)

    # -- what this backend can do -----------------------------------------------------------------

    def need(self, *modes: Mode) -> None:
        for mode in modes:
            if mode not in self.capabilities.modes:
                pytest.skip(f"capabilities: no {mode.value} claims")

    def need_token(self, mode: Mode = Mode.EXCLUSIVE) -> None:
        self.need(mode)
        if mode not in self.capabilities.fencing:
            pytest.skip(f"capabilities: {mode.value} claims carry no fencing token")

    def need_order(self) -> None:
        if self.capabilities.fairness != "fifo":
            pytest.skip(f"capabilities: fairness is {self.capabilities.fairness!r}")

    def need_inspection(self) -> None:
        if not self.capabilities.inspection:
            pytest.skip("capabilities: no inspection, so the line cannot be seen")

    def need_cells(self) -> None:
        if not self.capabilities.cells:
            pytest.skip("capabilities: no cells")

    def need_lasting_leases(self) -> None:
        """For leases that outlive the connection they were made on."""
        if self.capabilities.crash_release == "connection":
            pytest.skip("capabilities: a lease has a connection of its own, and ends with it")

    def need_processes(self) -> None:
        if not self.capabilities.cross_process:
            pytest.skip("capabilities: lives in one process")

    # -- the store, as an operator sees it --------------------------------------------------------

    async def look(self, name: str) -> LockInfo:
        """Who holds this name and who waits for it."""
        self.need_inspection()
        for info in await self.here.inspect(name):
            if info.name == name:
                return info
        return LockInfo(name, (), ())

    async def waiters(self, name: str) -> tuple[ClaimInfo, ...]:
        return (await self.look(name)).waiters

    async def in_line(self, name: str, count: int) -> None:
        """Until so many claims wait for this name."""

        async def so_many() -> bool:
            if not self.capabilities.inspection:
                return self.strategy.line(name) == count
            return len(await self.waiters(name)) == count

        await self.until(so_many, f"{count} in line for {name!r}")

    async def queue_up(
        self, lock: aio.Lock | aio.Semaphore, timeout: float = LONG
    ) -> asyncio.Task[aio.Lease | aio.Permit | None]:
        """Begin to acquire beside the test, and return when that stands in line (or has ended,
        if the machine is so slow that it did)."""
        blind = not self.capabilities.inspection
        length = self.strategy.line(lock.name) if blind else 0
        before = set[str]() if blind else {waiter.id for waiter in await self.waiters(lock.name)}

        async def acquire() -> aio.Lease | aio.Permit | None:
            return await lock.acquire(timeout=timeout)

        task = self.spawn(acquire())

        async def stands() -> bool:
            if blind:
                return task.done() or self.strategy.line(lock.name) > length
            return task.done() or any(w.id not in before for w in await self.waiters(lock.name))

        await self.until(stands, f"a place in line for {lock.name!r}")
        return task

    async def free(self, name: str) -> None:
        """Nobody holds this name and nobody waits for it: proven by taking it."""
        lease = await self.there.lock(name, timeout=LONG).acquire()
        assert lease, f"{name!r} is not free"
        await lease.release()
        if self.capabilities.inspection:
            info = await self.look(name)
            assert not info.holders
            assert not info.waiters

    # -- the frame of a test ----------------------------------------------------------------------

    async def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await test()
        except BaseException:
            # What is wrong after this is a consequence: it must not hide what came first.
            try:
                await self._tidy_up()
            except Exception:  # noqa: BLE001
                pass
            raise
        await self._tidy_up()
        await self._nothing_is_left()

    async def _tidy_up(self) -> None:
        self.strategy.heal()
        try:
            for client in self._clients:
                await client.close()
            for raw in self._raws:
                await raw.close()
        finally:
            self._clients.clear()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _nothing_is_left(self) -> None:
        if not self.capabilities.inspection:
            return
        probe = self.connect()
        try:
            await self.until(lambda: self._empty(probe), "a store without holders and waiters")
        finally:
            await probe.close()

    @staticmethod
    async def _empty(probe: aio.Locks) -> bool:
        return not await probe.inspect()
