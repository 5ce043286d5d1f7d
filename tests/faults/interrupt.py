"""Ctrl-C at every line that runs inside the package, and real signals at random moments.

A trace function raises KeyboardInterrupt at the n-th line, for every n until the work runs through
untouched; where the store makes that take minutes, for every fifth n, from a random one on, so that
other runs strike elsewhere (`tests/rotation.py`). The ttl is far longer than the
test, so nothing is freed by expiry: what was taken must have been given back, and nobody may be
left in line.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import linecache
import pathlib
import random
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import holdfast
from holdfast.core.acquire import Engine
from tests.rotation import EVERYTHING, SPARINGLY

# Leaving `with mutex:` is a line of its own to a tracer, before the mutex is released. CPython
# delivers no signal there (the release is one call in C), so neither do we.
MUTEX = re.compile(r"\s*with .*mutex")

PACKAGE = str(pathlib.Path(holdfast.__file__).parent)
LONG = 1000.0

IN_MEMORY = 5 if SPARINGLY else 1
STORED = 1 if EVERYTHING else 5
"""Strike at each so many lines: without, and with a file or a server behind them."""

Work = Callable[[holdfast.Locks, holdfast.Locks], None]


def plain_with(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with locks.lock("x", ttl=LONG):
        pass


def acquire_and_release(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=LONG)
    lease = lock.acquire()
    assert lease
    lease.release()


def lock_release(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=LONG)
    assert lock.acquire(timeout=5)
    lock.release()


def busy_try(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with other.lock("x", ttl=LONG):
        assert locks.lock("x", ttl=LONG).acquire(blocking=False) is None


def timed_out_wait(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with other.lock("x", ttl=LONG):
        assert locks.lock("x", ttl=LONG).acquire(timeout=0.002) is None


def handed_over(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    """Waits in line behind a holder that gives way as soon as somebody waits."""
    holder = other.lock("x", ttl=LONG).acquire()
    assert holder

    def give_way() -> None:
        while not any(info.waiters for info in other.inspect("x")) and not done.is_set():
            done.wait(0.0005)
        holder.release()

    done = threading.Event()
    thread = threading.Thread(target=give_way)
    thread.start()
    try:
        with locks.lock("x", ttl=LONG):
            pass
    finally:
        done.set()
        thread.join()


def entered_twice(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=LONG, reentrant=True)
    with lock, lock:
        pass


def fixed_entered_twice(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=LONG, reentrant=True, renew=False)
    with lock, lock:
        pass


def readers_and_permits(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with locks.rwlock("x", ttl=LONG).read(), locks.semaphore("y", 1, ttl=LONG):
        pass


def several(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with locks.multi("y", "x", ttl=LONG):
        pass


def several_in_vain(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with other.lock("y", ttl=LONG):
        assert locks.multi("x", "y", ttl=LONG).acquire(timeout=0.002) is None


def any_of_them(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with locks.stripes("x", 2, ttl=LONG).any():
        pass


def any_after_waiting(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    """Stands in both lines, behind holders one of which gives way."""
    stripes = other.stripes("x", 2, ttl=LONG)
    with stripes.any(), stripes.any() as holder:

        def give_way() -> None:
            while not any(info.waiters for info in other.inspect("x")) and not done.is_set():
                done.wait(0.0005)
            holder.release()

        done = threading.Event()
        thread = threading.Thread(target=give_way)
        thread.start()
        try:
            with locks.stripes("x", 2, ttl=LONG).any():
                pass
        finally:
            done.set()
            thread.join()


def decorated(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    @locks.locked("x", ttl=LONG)
    def work() -> None:
        pass

    work()


numbers = itertools.count()


def computed_once(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    once = locks.once(f"o{next(numbers)}", LONG, lambda: "value", lease=LONG)
    assert once.get() == "value"


def held_and_forgotten(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    once = locks.once("o", LONG, lambda: "value", lease=LONG)
    with once.hold() as using:
        assert using.value == "value"
    once.invalidate("value")


def led(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    election = locks.election("x", ttl=LONG)
    assert election.campaign("here")
    assert election.resign()


def run_by_the_leader(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    assert locks.election("x", ttl=LONG).run_when_leader(lambda leadership: leadership.held)


def counted_down(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    latch = locks.latch(f"l{next(numbers)}", 1)
    assert latch.count_down() == 0
    assert latch.wait()


def waited_in_vain(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    with contextlib.suppress(holdfast.BrokenBarrier, holdfast.AcquireTimeout):
        locks.barrier(f"b{next(numbers)}", 2, ttl=LONG).wait(timeout=0.002)


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line event inside the package."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and not self.where:
            if MUTEX.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
                return self
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> InterruptAt:
        gc.disable()  # else it may strike in a finaliser of somebody else's, where it is swallowed
        sys.settrace(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)
        gc.enable()


def interrupted(work: Callable[[], object], n: int) -> str:
    """Run it with an interrupt at the n-th line; where that was, empty if it ended before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a coroutine may have been made and never started
        with InterruptAt(n) as interrupt:
            try:
                work()
            except KeyboardInterrupt:
                pass
    return interrupt.where


def nothing_is_left(locks: holdfast.Locks, other: holdfast.Locks, where: str) -> None:
    locks._engine().keeper.rouse()  # or it would notice at its next look, within a second
    other._engine().keeper.rouse()
    for name in ("x", "y", "x[0/2]", "x[1/2]"):
        lease = other.lock(name, ttl=LONG).acquire(timeout=30)
        assert lease, f"{name} is still taken after an interrupt at {where}: {other.inspect()}"
        lease.release()
    engine: Engine = locks._engine()
    deadline = time.monotonic() + 30
    while not engine.keeper.idle or engine.keeper._claims:
        assert time.monotonic() < deadline, f"claims are remembered after {where}"
        engine.keeper._wake.set()
        time.sleep(0.0005)
    assert other.inspect() == [], where


def lines(each: int) -> Iterator[int]:
    """Where to strike, one after another; the run's seed decides which of them, and is printed."""
    return itertools.count(1 + random.randrange(each), each)


def at_every_line(work: Work, locks: holdfast.Locks, other: holdfast.Locks, each: int) -> None:
    for n in lines(each):
        where = interrupted(lambda: work(locks, other), n)
        nothing_is_left(locks, other, where)
        if not where:
            assert n > 30, "the tracer saw too little"
            return


def at_random_moments(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    """The same with a real timer signal, which strikes between bytecodes, not only lines."""

    def strike(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    rng = random.Random(4711)
    deadline = time.monotonic() + 3.0
    try:
        while time.monotonic() < deadline or (struck <= 50 and time.monotonic() < deadline + 60):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-4))
                plain_with(locks, other)
                lock_release(locks, other)
                with contextlib.suppress(holdfast.Unavailable):
                    timed_out_wait(locks, other)  # too short for a server to say that it is busy
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gc.collect()
    nothing_is_left(locks, other, f"{struck} signals")
    assert struck > 50
