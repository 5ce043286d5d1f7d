"""Fork, exit and clocks: what happens to a process, not to a request."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable

import pytest

import holdfast
from holdfast import LeaseLost, Unsupported
from holdfast.ports import clock
from tests.waiting import until


def renewed(lease: holdfast.Lease) -> None:
    """Until its keeper has extended it once more."""
    least = lease.remaining()

    def longer() -> bool:
        nonlocal least
        last, least = least, lease.remaining()
        return least > last

    until(longer, "a renewal")


def in_child(body: Callable[[], None]) -> None:
    """Run in a forked child; what it raises is shown here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            body()
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
            status = 1
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text


@pytest.mark.req("B3", "law 8", "fork after acquire")
def test_a_forked_child_owns_nothing() -> None:
    told: list[LeaseLost] = []
    with holdfast.connect("memory://fork") as locks:
        lock = locks.lock("x", ttl=60, renew=0.2, on_lost=told.append)
        with lock as lease:

            def child() -> None:
                assert not lease.held
                assert not lease.uncertain
                assert lease.remaining() == 0
                assert lease.lost.is_set()
                assert lease.lost.wait(5)
                assert "lost" in repr(lease)
                assert lease.release() is False
                with pytest.raises(LeaseLost, match="forked"):
                    lease.check()
                with pytest.raises(Unsupported, match="forked child"):
                    locks.lock("y").acquire()
                with pytest.raises(Unsupported, match="forked child"):
                    locks.inspect()
                locks.close()
                assert threading.active_count() == 1  # no keeper

            in_child(child)
            assert lease.held
            renewed(lease)  # here, still
            assert lease.held
    assert not told


@pytest.mark.req("B3", "law 8", "fork after acquire")
def test_leaving_the_with_in_the_child_releases_nothing_of_the_parents() -> None:
    with holdfast.connect("memory://fork2") as locks:
        child = False
        with locks.lock("x", ttl=30) as lease:
            pid = os.fork()
            child = pid == 0
        if child:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        held = lease.held
        assert not held  # released here, by us
        with locks.lock("x", timeout=0):
            pass


@pytest.mark.req("law 8")
def test_a_child_may_make_its_own_client() -> None:
    with holdfast.connect("memory://fork3") as locks, locks.lock("x"):

        def child() -> None:
            # The same URL: but a child has no share in the parent's memory.
            with (
                holdfast.connect("memory://fork3") as own,
                own.lock("x", ttl=60, renew=0.2) as lease,
            ):
                renewed(lease)
                assert lease.held

        in_child(child)


def run_python(source: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.req("interpreter exits holding a lock")
def test_the_interpreter_exits_at_once_and_gives_back() -> None:
    result = run_python(
        """
        import atexit, holdfast
        locks = holdfast.connect("memory://exit")
        store = locks._current.backend.store
        # Runs after holdfast's own exit handler: handlers run last in, first out.
        import holdfast.ports.thread as port
        atexit.unregister(port._exit)
        atexit.register(lambda: print("left:", store.inspect("", False)))
        atexit.register(port._exit)
        lock = locks.lock("x", ttl=1000)
        lock.acquire()
        """
    )
    assert result.returncode == 0, result.stderr
    assert "left: []" in result.stdout


@pytest.mark.req("interpreter exits holding a lock")
def test_a_waiting_daemon_thread_does_not_keep_the_interpreter() -> None:
    result = run_python(
        """
        import threading, holdfast
        locks = holdfast.connect("memory://exit")
        lock = locks.lock("x", ttl=1000)
        lock.acquire()
        other = locks.lock("x", ttl=1000)
        threading.Thread(target=other.acquire, daemon=True).start()
        while not any(info.waiters for info in locks.inspect()):
            pass
        print("bye")
        """
    )
    assert result.returncode == 0, result.stderr
    assert "bye" in result.stdout


@pytest.mark.req("interpreter exits holding a lock")
@pytest.mark.parametrize("again", ["False", "True"])
def test_daemon_threads_are_granted_nothing_on_the_way_out(again: str) -> None:
    """Whoever waits is withdrawn at exit, and does not come back as somebody new; nor does a loop
    that takes the lock again and again. And nothing of it is printed."""
    result = run_python(
        f"""
        import atexit, threading, time, holdfast
        locks = holdfast.connect("memory://exit")
        store = locks._current.backend.store
        import holdfast.ports.thread as port
        def look():
            time.sleep(0.2)  # daemon threads run on meanwhile
            print("left:", store.inspect("", False))
        atexit.unregister(port._exit)
        atexit.register(look)
        atexit.register(port._exit)
        def work():
            while True:
                lease = locks.lock("x", ttl=1000).acquire()
                if {again}:
                    lease.release()
        lock = locks.lock("x", ttl=1000)
        lock.acquire()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        while sum(len(info.waiters) for info in locks.inspect()) < 4:
            pass
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "left: []\n"
    assert result.stderr == ""


@pytest.mark.req("interpreter exits holding a lock")
def test_who_asks_while_the_interpreter_exits_is_told() -> None:
    """A handler that was registered before us runs after our farewell: it was taken for a daemon
    thread, which asks for nothing any more, and slept for a day."""
    result = run_python(
        """
        import atexit
        def late():
            try:
                locks.lock("y").acquire()
            except holdfast.HoldfastError as error:
                print(type(error).__name__)
        atexit.register(late)
        import holdfast
        locks = holdfast.connect("memory://exit")
        lock = locks.lock("x", ttl=1000)
        lock.acquire()
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Closed\n"


@pytest.mark.req("B2", "law 5")
def test_that_the_main_thread_has_ended_is_no_exit() -> None:
    """Others go on, at the limit of threads: callbacks kept the keeper from renewing, and what
    nobody would keep was taken, since "the interpreter is exiting"."""
    result = run_python(
        """
        import threading
        import holdfast
        locks = holdfast.connect("memory://main-ended")
        gate, start = threading.Event(), threading.Thread.start
        def refused(thread):
            if thread.name.startswith("holdfast"):
                raise RuntimeError("can't start new thread")
            start(thread)
        def block(loss):
            gate.wait(20)
        kept = locks.lock("kept", ttl=0.6, renew=0.1).acquire()
        lost = [
            locks.lock(f"n{number}", ttl=0.3, renew=False, on_lost=block).acquire()
            for number in range(3)
        ]
        def go_on():
            threading.main_thread().join()
            threading.Thread.start = refused
            print(kept.lost.wait(1.5), any(kept.held for kept in lost))
            gate.set()
            try:
                print(holdfast.connect("memory://other").lock("x").acquire())
            except holdfast.Unavailable as error:
                print("ulimit -u" in str(error))
        threading.Thread(target=go_on).start()
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "False False\nTrue\n"


@pytest.mark.req("interpreter exits holding a lock")
def test_asyncio_run_ends_without_a_closed_client() -> None:
    result = run_python(
        """
        import asyncio, holdfast.aio, holdfast
        async def main():
            locks = holdfast.aio.connect("memory://exit")
            lock = locks.lock("x", ttl=1000)
            await lock.acquire()
            waiter = asyncio.create_task(locks.lock("x", ttl=1000).acquire())
            await asyncio.sleep(0.05)
            return locks
        locks = asyncio.run(main())
        print("left:", locks._current.backend.store.inspect("", False))
        """
    )
    assert result.returncode == 0, result.stderr
    assert "left: []" in result.stdout
    assert "Task was destroyed" not in result.stderr


@pytest.mark.req("client wall clock +-1 h", "law 1")
def test_the_wall_clock_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    for step in (3600.0, -3600.0):
        with holdfast.connect(f"memory://wall{step}") as locks:
            with locks.lock("x", ttl=60, renew=0.2) as first:
                monkeypatch.setattr(time, "time", lambda step=step: real() + step)
                renewed(first)
                assert first.held
                assert locks.lock("x").acquire(blocking=False) is None
            with locks.lock("x", ttl=1.0) as second:
                assert second.fence > first.fence  # tokens of one store never go back


@pytest.mark.req("host suspended", "law 1")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this kernel has no CLOCK_BOOTTIME")
def test_deadlines_count_while_the_host_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = clock.now()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.req("host suspended", "client paused longer than its lease", "B1")
def test_after_a_suspend_the_first_look_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps and no timer fired: `held` is false at the first look all the same."""
    with holdfast.connect("memory://suspend") as locks:
        lease = locks.lock("x", ttl=30).acquire()
        assert lease
        port = locks._current.port
        now = port.now
        monkeypatch.setattr(port, "now", lambda: now() + 31)
        assert not lease.held
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost, match="time ran out"):
            lease.check()
        assert lease.release() is False
