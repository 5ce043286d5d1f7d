"""What the garbage collector ends in the middle of a call of holdfast, in the same thread.

It may close a generator that lies inside of a `with lock:` wherever it likes: while this thread has
a mutex, stands in a line, or reads what others wait for. Blocking clients only: nothing that is
awaited can be done by a finaliser.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.ports import inside
from holdfast.ports.bare import Thread
from tests.waiting import until

SERVERS = ("redis_server", "etcd_server", "zookeeper_server", "postgres_server", "mariadb_server")
LONG = 60.0


@pytest.fixture(
    params=["memory", "sqlite", *(pytest.param(s, marks=pytest.mark.servers) for s in SERVERS)]
)
def locks(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[holdfast.Locks]:
    if request.param == "memory":
        url = "memory://collected"
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/locks.db"
    else:
        url = request.getfixturevalue(request.param).url.replace("zookeeper://", "zk://")
    with holdfast.connect(url, request_timeout=20) as locks:
        yield locks


def using(locks: holdfast.Locks, name: str) -> Any:
    """A generator that is inside of a `with lock:`."""

    def generator() -> Iterator[None]:
        with locks.lock(name, ttl=LONG):
            yield

    made = generator()
    next(made)
    return made


def within_an_attempt(locks: holdfast.Locks, do: Callable[[], object]) -> None:
    """Done while another acquire of this thread is being asked for."""
    backend: Any = locks._current.backend
    attempt = backend.attempt

    async def attempted(*arguments: Any) -> Any:
        backend.attempt = attempt
        do()
        return await attempt(*arguments)

    backend.attempt = attempted
    with locks.lock("collected-around", ttl=LONG, timeout=LONG):
        pass


def free(locks: holdfast.Locks, name: str) -> None:
    """Soon, and not only when its ttl is over."""
    until(lambda: not locks.lock(name).locked(), f"{name} is free")


@pytest.mark.req("B3", "law 4")
def test_a_release_inside_of_another_call_is_the_keepers(locks: holdfast.Locks) -> None:
    """It waited: on etcd and SQL for a turn that its own call was to leave, on ZooKeeper for an
    answer that its own thread was to read; and all others with it."""
    asked: list[object] = []
    engine: Any = locks._current
    release, collected = engine.backend.release, using(locks, "collected")

    async def waits(*arguments: Any) -> Any:
        asked.append(arguments[0].claim.name)
        return await release(*arguments)

    engine.backend.release = waits
    within_an_attempt(locks, collected.close)
    assert asked == ["collected-around"]
    free(locks, "collected")


@pytest.mark.req("B3", "law 4")
def test_a_release_with_the_mutex_in_hand_is_the_keepers(locks: holdfast.Locks) -> None:
    collected = using(locks, "collected-in-hand")
    with locks._current.port.mutex():
        collected.close()
    free(locks, "collected-in-hand")


@pytest.mark.req("B3", "law 4")
def test_a_release_in_a_thread_that_others_rely_on_is_the_keepers(locks: holdfast.Locks) -> None:
    """As of kazoo's connection, which would wait for what only itself can read."""
    collected, nested = using(locks, "collected-in-ours"), list[bool]()

    def ours() -> None:
        nested.append(locks._current.port.nested())
        collected.close()

    engine: Any = locks._current
    backend, release = engine.backend, engine.backend.release

    async def waits(*arguments: Any) -> Any:
        raise AssertionError("it asked the store itself")

    backend.release = waits
    thread = Thread(ours, "holdfast-test")
    thread.start()
    thread.join(20)
    backend.release = release
    assert not thread.is_alive()
    assert nested == [False]  # nothing was called yet
    free(locks, "collected-in-ours")


@pytest.mark.req("B3", "law 4", "R5")
def test_a_lease_of_several_is_left_by_the_keeper(locks: holdfast.Locks) -> None:
    def generator() -> Generator[None, None, None]:
        with locks.multi("collected-1", "collected-2", ttl=LONG):
            yield

    several = generator()
    next(several)
    lock = locks.lock("collected-again", ttl=LONG, reentrant=True)
    outer = lock.acquire()
    assert outer
    inner = using_again(lock)
    within_an_attempt(locks, several.close)
    within_an_attempt(locks, inner.close)
    free(locks, "collected-1")
    free(locks, "collected-2")
    assert outer.held
    until(lambda: len(outer._hold.shares or ()) == 1, "the inner one is left")
    assert outer.release() is True
    free(locks, "collected-again")


def using_again(lock: holdfast.Lock) -> Any:
    def generator() -> Iterator[None]:
        with lock:
            yield

    made = generator()
    next(made)
    return made


def test_a_leader_resigns_there_without_a_word(locks: holdfast.Locks) -> None:
    def generator() -> Generator[None, None, None]:
        campaign: Any = locks.election("collected-leader", ttl=LONG).campaign("me")
        with campaign:
            yield

    leads = generator()
    next(leads)
    within_an_attempt(locks, leads.close)
    until(lambda: locks.election("collected-leader").leader() is None, "nobody leads")


@pytest.mark.req("B3")
def test_to_acquire_there_is_refused(locks: holdfast.Locks) -> None:
    refused: list[str] = []

    def finaliser() -> None:
        for take in (
            locks.lock("collected-b").acquire,
            locks.multi("collected-c", "collected-d").acquire,
            locks.stripes("collected-e", 2).any().acquire,
        ):
            try:
                take(timeout=5)
            except holdfast.WouldDeadlock as error:
                refused.append(str(error))

    within_an_attempt(locks, finaliser)
    assert len(refused) == 3
    assert "finaliser" in refused[0]
    assert all(not locks.lock(f"collected-{name}").locked() for name in "bcd")


@pytest.mark.req("B2", "R70")
def test_what_users_want_to_be_called_may_acquire(locks: holdfast.Locks) -> None:
    told: list[bool] = []
    done = threading.Event()

    def on_lost(loss: object) -> None:
        with locks.lock("collected-callback", timeout=20) as lease:
            told.append(lease.held)
        done.set()

    def compute() -> str:
        with locks.lock("collected-compute", timeout=20):
            return "computed"

    lease = locks.lock("collected-lost", ttl=0.2, renew=False, on_lost=on_lost).acquire()
    assert locks.once("collected-once", 60, compute).get() == "computed"
    assert done.wait(20)
    assert told == [True]
    assert lease


def test_what_was_interrupted_is_not_taken_for_a_call() -> None:
    """Nobody takes himself off the list."""

    async def over() -> None: ...

    coroutine = over()
    coroutine.close()
    for _ in range(3):
        inside.enter(coroutine)
    assert not inside.nested()
    assert len(inside._calls.stack) == 1


@pytest.mark.parametrize("cycles", [300])
def test_cycles_that_the_collector_finds(locks: holdfast.Locks, cycles: int) -> None:
    """As it comes: wherever it finds them, nobody stands still and nothing stays behind."""
    names = [f"collected-cycle-{number}" for number in range(4)]
    slow: list[float] = []
    stop = threading.Event()

    class Cycle:
        def __init__(self, name: str) -> None:
            self.itself = self
            self.inside = using(locks, name)

    def work(number: int) -> None:
        while not stop.is_set():
            began = time.monotonic()
            with locks.lock(f"collected-work-{number % 2}", ttl=LONG, timeout=LONG):
                pass
            slow.append(time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        before = gc.get_threshold()
        gc.set_threshold(150)
        for number in range(cycles // len(names)):
            for name in names:
                Cycle(f"{name}-{number}")
    finally:
        gc.set_threshold(*before)
        stop.set()
        for thread in threads:
            thread.join(LONG)
    gc.collect()
    assert max(slow) < 15  # it was `request_timeout` and twice that
    until(lambda: not locks.inspect("collected-cycle-"), "all are given back")
