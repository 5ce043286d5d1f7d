"""Ctrl-C inside of the standard library's own waiting is Ctrl-C, and no other trouble."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.backends.common import begun
from holdfast.backends.sqlite.backend import Worker
from holdfast.backends.sqlite.presence import Presence
from holdfast.core.port import NoThread, interruptible
from holdfast.ports.thread import ThreadPort

pytestmark = pytest.mark.req("B3", "KeyboardInterrupt at any line")


IN_THE_GATE = """
import sys
from holdfast.backends.sqlite.presence import Presence
gate = Presence(sys.argv[1])
assert gate.try_gate()
print("in", flush=True)
sys.stdin.read()
"""


def nothing() -> None:
    pass


async def no_farewell() -> None:
    pass


class TimeLimit(Exception):
    """What a task queue's handler of SIGALRM or SIGUSR1 raises."""


def struck(
    call: Callable[[], object], by: type[BaseException] = KeyboardInterrupt
) -> BaseException | None:
    """What `call` raises when Ctrl-C comes while a `Condition` has given its lock away, and has
    not taken it again: the interrupt itself leaves the `with` as "release unlocked lock"."""
    strikes = 0

    def strike(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal strikes
        if frame.f_code.co_name == "_acquire_restore" and not strikes:
            strikes += 1
            raise by

    quick = sys.getswitchinterval()
    sys.setswitchinterval(5)  # who starts a thread waits for it, and does not find it begun
    sys.settrace(strike)
    try:
        call()
    except BaseException as error:
        return error
    finally:
        sys.settrace(None)
        sys.setswitchinterval(quick)
        assert strikes, "there was no wait"
    return None


def test_the_library_has_this_hazard() -> None:
    """If this fails, `interruptible` is needed no more."""
    error = struck(threading.Thread(target=nothing).start)
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__context__, KeyboardInterrupt)


def test_starting_a_thread() -> None:
    assert type(struck(lambda: begun(threading.Thread(target=nothing)))) is KeyboardInterrupt
    task = ThreadPort().task(no_farewell, no_farewell, "holdfast-test")
    assert type(struck(task.start)) is KeyboardInterrupt


def test_what_another_handler_of_signals_raises() -> None:
    """It was told as `NoThread`, and the time limit was gone."""
    with holdfast.connect("memory://time-limit") as locks:
        assert type(struck(locks.lock("x").acquire, TimeLimit)) is TimeLimit
        assert locks.inspect() == []


@pytest.mark.parametrize("url", ["memory://interruptible", "sqlite"])
def test_an_acquire_that_starts_threads(url: str, tmp_path: Path) -> None:
    """It was told as `NoThread`: the process has as many threads as it may have."""
    url = f"sqlite:///{tmp_path}/locks" if url == "sqlite" else url
    with holdfast.connect(url) as locks:
        assert type(struck(locks.lock("x").acquire)) is KeyboardInterrupt
        lease = locks.lock("x").acquire(timeout=20)
        assert lease
        assert lease.release()


def test_sqlites_worker_is_one() -> None:
    """A second Ctrl-C in asyncio.run: what is asked for next found no thread, and made another."""
    worker = Worker(object(), ThreadPort())  # type: ignore[arg-type]
    assert type(struck(worker._start)) is KeyboardInterrupt
    begun_then = worker._thread
    worker._start()
    assert worker._thread is begun_then
    worker._jobs.put(None)
    assert begun_then
    begun_then.join(20)
    assert not begun_then.is_alive()


def test_who_waits_at_sqlites_gate(tmp_path: Path) -> None:
    inside = subprocess.Popen(
        [sys.executable, "-c", IN_THE_GATE, str(tmp_path / "presence")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    presence = Presence(str(tmp_path / "presence"))
    try:
        assert inside.stdout
        assert inside.stdout.readline() == "in\n"
        presence.gate_free(0.001)  # its thread is there: from now on only the wait is interrupted
        assert type(struck(lambda: presence.gate_free(5))) is KeyboardInterrupt
        assert not presence.gate_free(0.001)
    finally:
        inside.communicate("go")
    assert presence.gate_free(20)
    presence.close()


def test_what_is_no_interrupt_is_told_as_before() -> None:
    def fails() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="new thread"):
        interruptible(fails)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # one that is over: whoever cleans up after it asks for a thread
        with pytest.raises(RuntimeError, match="new thread"):
            interruptible(fails)


def test_no_thread_beside_an_interrupt_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    task = ThreadPort().task(no_farewell, no_farewell, "holdfast-test")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(NoThread):
            task.start()
