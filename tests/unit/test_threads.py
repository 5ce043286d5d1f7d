"""Threads that run beside the caller: nobody waits for their beginning, Ctrl-C is Ctrl-C, and what
the garbage collector finds in them stops nothing.

Over 400 lines: cases, each read by itself, that share how an interrupt is put at a line.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.waiting import until

import holdfast
from holdfast.backends.sqlite.backend import Worker
from holdfast.backends.sqlite.lockfile import LockFile
from holdfast.core.port import NoThread
from holdfast.ports.bare import Thread, _There
from holdfast.ports.thread import ThreadPort

pytestmark = pytest.mark.req("B3")

IN_THE_GATE = """
import sys
from holdfast.backends.sqlite.lockfile import LockFile
gate = LockFile(sys.argv[1])
assert gate.try_gate()
print("in", flush=True)
sys.stdin.read()
"""


async def nothing() -> None:
    pass


OLD = sys.version_info < (3, 13)
PLACES = 6
"""Of an interrupt while a thread begins; see `struck`."""


class TimeLimit(Exception):
    """What a task queue's handler of SIGALRM or SIGUSR1 raises."""


# -- beginning ------------------------------------------------------------------------------------


class Held(Thread):
    """It has been started, and does not come to life yet."""

    may_live = threading.Event()

    def _bootstrap(self) -> None:
        self.may_live.wait(5)
        super()._bootstrap()


@pytest.fixture
def held() -> Iterator[Held]:
    Held.may_live.clear()
    ran: list[str] = []
    thread = Held(lambda: ran.append("it ran"), "holdfast-test")
    thread.start()
    yield thread
    Held.may_live.set()
    thread.join(20)
    assert not thread.is_alive()
    assert ran == ["it ran"]


def test_who_starts_a_thread_does_not_wait_for_it(held: Held) -> None:
    """That of the standard library does: if this one did, it would never come back."""
    assert held.is_alive()
    assert not held._over.is_set()


def test_who_waits_for_its_end_waits_though_it_has_not_begun(held: Held) -> None:
    began = time.monotonic()
    held.join(0.2)
    assert time.monotonic() - began > 0.15
    assert held.is_alive()


def test_it_is_named_and_a_daemon_and_may_be_asked_for_its_end_from_inside() -> None:
    seen: list[Any] = []

    def look() -> None:
        this = threading.current_thread()
        this.join(0)
        seen.append((this.name, this.daemon, this.is_alive()))

    thread = Thread(look, "holdfast-test")
    assert not thread.is_alive()
    thread.start()
    thread.join()
    assert seen == [("holdfast-test", True, True)]
    assert not thread.is_alive()


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


# -- interrupts -----------------------------------------------------------------------------------


def struck(
    call: Callable[[], object], line: int, by: type[BaseException] = KeyboardInterrupt
) -> tuple[BaseException | None, list[str]]:
    """What `call` raises if an interrupt strikes in the beginning of a thread, and where it did.
    `line` counts those of our `start`, and the doors of what it calls: before there is a thread,
    and after. (Not inside of the standard library's, where it would leave a mutex locked.)"""
    seen: list[str] = []
    inside = {_There.wait.__code__, threading.Thread.start.__code__}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        ours = frame.f_code is Thread.start.__code__
        if not ours and frame.f_code not in inside:
            return None
        if event == "line" if ours else event == "call":
            seen.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            if len(seen) == line + 1:
                raise by
        return trace if ours else None

    sys.settrace(trace)
    try:
        call()
    except BaseException as error:
        return error, seen
    finally:
        sys.settrace(None)
    return None, seen


@pytest.mark.req("KeyboardInterrupt at any line")
def test_who_is_interrupted_in_the_beginning_has_a_thread_or_has_none() -> None:
    for line in range(PLACES):
        ran: list[int] = []
        go_on = threading.Event()

        def body(ran: list[int] = ran, go_on: threading.Event = go_on) -> None:
            go_on.wait(20)
            ran.append(1)

        thread = Thread(body, "holdfast-test")
        error, lines = struck(thread.start, line)
        assert type(error) is KeyboardInterrupt, lines
        alive = thread.is_alive()
        go_on.set()
        thread.join(20)
        assert ran == [1] * alive, lines[-1]
        assert not thread.is_alive()


@pytest.mark.req("KeyboardInterrupt at any line")
def test_who_is_interrupted_while_it_looks_takes_nobody_for_dead() -> None:
    """Before Python 3.13 the standard library's answer gives up the lock that it is read from."""
    go_on = threading.Event()
    thread = Thread(functools.partial(go_on.wait, 20), "holdfast-test")
    thread.start()
    until(lambda: threading._active.get(thread.ident or 0) is thread, "it runs")  # type: ignore[attr-defined]
    strikes, left = 0, 1
    while left != strikes:
        left, strikes, seen = strikes, strikes, 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal seen, strikes
            seen += 1
            if seen > strikes:
                strikes += 1
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            thread.is_alive()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert thread.is_alive(), strikes
    assert strikes > 2
    go_on.set()
    thread.join(20)


@pytest.mark.req("KeyboardInterrupt at any line")
def test_a_refusal_that_is_interrupted_leaves_nobody_who_looks_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    for line in range(20):
        thread = Thread(lambda: None, "holdfast-test")
        error, lines = struck(thread.start, line)
        assert not thread.is_alive(), lines[-1]
        if not isinstance(error, KeyboardInterrupt):
            break
    assert 4 < line < 19
    assert isinstance(error, RuntimeError)


@pytest.mark.req("KeyboardInterrupt at any line")
@pytest.mark.parametrize("begun", [True, False])
def test_what_threading_takes_for_a_failure_to_start(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Another handler's exception just after the thread was started: `start` cleans up after it as
    if there were none, which is a `KeyError` if the thread was quicker."""
    start_new_thread = threading._start_new_thread if OLD else threading._start_joinable_thread  # type: ignore[attr-defined]

    def struck(*arguments: Any, **named: Any) -> None:
        if begun:
            start_new_thread(*arguments, **named)
            until(lambda: thread in threading._active.values(), "and known")  # type: ignore[attr-defined]
        raise TimeLimit

    name = "_start_new_thread" if OLD else "_start_joinable_thread"
    monkeypatch.setattr(threading, name, struck)
    go_on = threading.Event()
    thread = Thread(functools.partial(go_on.wait, 20), "holdfast-test")
    with pytest.raises(TimeLimit):
        thread.start()
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.req("KeyboardInterrupt at any line")
def test_a_thread_that_comes_after_it_was_cleaned_up_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same, and the thread was slower: it did not find itself, and said so on stderr."""
    name = "_start_new_thread" if OLD else "_start_joinable_thread"
    start_new_thread = getattr(threading, name)
    errors: list[BaseException] = []
    ended, ran = threading.Event(), threading.Event()
    mutex: Any = threading._active_limbo_lock  # type: ignore[attr-defined]

    def struck(bootstrap: Callable[[], None], *arguments: Any, **named: Any) -> None:
        def watched() -> None:
            try:
                bootstrap()
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        start_new_thread(watched, *arguments, **named)
        raise TimeLimit

    monkeypatch.setattr(threading, name, struck)
    thread = Thread(ran.set, "holdfast-test")
    with mutex, pytest.raises(TimeLimit):
        thread.start()
    assert ended.wait(20)
    assert not thread.is_alive()
    assert not ran.is_set()
    assert errors == []


@pytest.mark.req("KeyboardInterrupt at any line")
@pytest.mark.parametrize("url", ["memory://interrupted", "sqlite"])
@pytest.mark.parametrize("by", [KeyboardInterrupt, TimeLimit])
def test_an_acquire_that_starts_threads(url: str, by: type[BaseException], tmp_path: Path) -> None:
    """It was told as `NoThread`: the process has as many threads as it may have."""
    for line in range(PLACES):
        where = f"sqlite:///{tmp_path}/{line}" if url == "sqlite" else f"{url}-{line}-{by.__name__}"
        with holdfast.connect(where) as locks:
            error, lines = struck(locks.lock("x").acquire, line, by)
            assert type(error) is by, lines
            lease = locks.lock("x").acquire(timeout=20)
            assert lease
            assert lease.release()


@pytest.mark.req("KeyboardInterrupt at any line")
def test_sqlites_worker_is_one() -> None:
    """A second Ctrl-C in asyncio.run: what is asked for next found no thread, and made another."""
    for line in range(PLACES):
        worker = Worker(object(), ThreadPort())  # type: ignore[arg-type]
        assert type(struck(worker._start, line)[0]) is KeyboardInterrupt
        first = worker._thread
        alive = first is not None and first.is_alive()
        worker._start()
        assert (worker._thread is first) == alive
        worker._jobs.put(None)
        assert worker._thread
        worker._thread.join(20)
        assert not worker._thread.is_alive()


@pytest.mark.req("KeyboardInterrupt at any line")
def test_who_waits_at_sqlites_gate(tmp_path: Path) -> None:
    """It came out as "release unlocked lock"."""
    inside = subprocess.Popen(
        [sys.executable, "-c", IN_THE_GATE, str(tmp_path / "presence")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    presence = LockFile(str(tmp_path / "presence"))
    before = signal.signal(signal.SIGUSR1, interrupt)
    waiting = threading.Event()
    main = threading.main_thread().ident or 0

    def strike() -> None:
        waiting.wait(20)
        frames = sys._current_frames
        until(lambda: frames()[main].f_code.co_name == "block", "it waits")
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=strike)
    try:
        assert inside.stdout
        assert inside.stdout.readline() == "in\n"
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            waiting.set()
            presence.gate_free(30)
        assert not presence.gate_free(0.001)
    finally:
        waiting.set()
        thread.join(20)
        signal.signal(signal.SIGUSR1, before)
        inside.communicate("go")
    assert presence.gate_free(20)
    presence.close()


def test_no_thread_beside_an_interrupt_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    task = ThreadPort().task(nothing, nothing, "holdfast-test")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(NoThread):
            task.start()
    assert not task.alive


# -- garbage --------------------------------------------------------------------------------------

COLLECTED = """
import gc, sys, threading
import holdfast

url, begins = sys.argv[1:]

class Node:  # a generator that lies inside of a `with lock:`, and that only the collector can end
    def __init__(self, locks):
        self.itself = self
        self.inside = self.using(locks)
        next(self.inside)
    def using(self, locks):
        with locks.lock("mine"):
            yield

collected = threading.Event()
set_ident = threading.Thread._set_ident
def collect(thread):
    set_ident(thread)
    if thread.name == begins and not collected.is_set():
        gc.collect()
        collected.set()

gc.disable()
with holdfast.connect(url) as here, holdfast.connect(url) as there:
    busy = there.stripes("s", 2).all().acquire()
    Node(here)
    threading.Thread._set_ident = collect
    taken = threading.Thread(target=here.stripes("s", 2).any().acquire, args=(True, 30))
    taken.start()
    assert collected.wait(30)
    with there.lock("mine", timeout=30):
        pass
    assert busy.release()
    taken.join(30)
    assert not taken.is_alive()
"""


@pytest.mark.req("law 4", "R2")
@pytest.mark.parametrize(
    ("url", "begins"),
    [("memory", "holdfast-stripe"), ("sqlite", "holdfast-post")],
)
def test_what_is_collected_in_a_thread_that_begins_is_given_back(
    url: str, begins: str, tmp_path: Path
) -> None:
    """The collector may run as soon as a thread has a frame, before it says that it is there. Who
    started it waited for that with a mutex, which what was collected wanted: both for ever."""
    where = f"sqlite:///{tmp_path}/locks" if url == "sqlite" else "memory://collected"
    subprocess.run([sys.executable, "-c", COLLECTED, where, begins], check=True, timeout=100)
