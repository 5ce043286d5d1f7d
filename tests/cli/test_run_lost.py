"""`holdfast run --on-lost`: the command never outlives the lock, whatever is killed or stopped.

The command writes a heartbeat of CLOCK_BOOTTIME every millisecond, and so does a grandchild in a
session of its own; the store dates its grants on the same clock. No heartbeat may be later than the
next grant. (`tests/cli/stress_run.py` does the same at random, for as long as one likes.)
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast as library
from tests.cli.harness import PATIENCE, alive, holdfast, line, started, until
from tests.cli.store import Store

CHILD = (sys.executable, "-S", str(Path(__file__).with_name("child.py")))
TTL = 6.0
"""By the clock the command is ended a tenth of this before the lease is over: so long a machine may
keep waiting the process that has to do it."""


class Running:
    """A `holdfast run` whose command beats, deaf to TERM, with a grandchild."""

    def __init__(self, process: subprocess.Popen[str], beats: Path) -> None:
        self.process = process
        self.front = process.pid
        self.command, self.warden, self.grandchild = map(int, line(process).split()[:3])
        self.beats = beats
        until(lambda: len(heartbeats(beats, 2)) > 1, "the grandchild beats")

    def last(self) -> float:
        """The last sign of life, of whomever."""
        return max(heartbeats(self.beats, 1)[-1], heartbeats(self.beats, 2)[-1])


def heartbeats(path: Path, who: int) -> list[float]:
    file = path if who == 1 else path.with_name(path.name + ".2")
    data = file.read_bytes() if file.exists() else b""
    return [beat[0] for beat in struct.iter_unpack("d", data[: len(data) // 8 * 8])]


@contextmanager
def beating(store: Store, tmp_path: Path, *options: str, deaf: bool = True) -> Iterator[Running]:
    beats = tmp_path / "beats"
    flags = ["--fork", *(["--deaf"] if deaf else [])]
    command = ("run", "job", "--ttl", str(TTL), *options, "--", *CHILD, "beat", str(beats), *flags)
    with started(*command, url=store.url) as process:
        run = Running(process, beats)
        try:
            yield run
        finally:
            # A process that outlives the command, which ended by itself, is the command's affair.
            for pid in (run.command, run.warden, run.grandchild):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def successor(store: Store) -> Iterator[threading.Event]:
    """Somebody waits for the lock and takes it; set when it has."""
    taken = threading.Event()

    def wait() -> None:
        with library.connect(store.url) as locks, locks.lock("job", timeout=PATIENCE):
            taken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    with library.connect(store.url) as locks:
        until(lambda: any(info.waiters for info in locks.inspect("job")), "somebody waits")
    try:
        yield taken
    finally:
        thread.join()


def handed_over(store: Store, run: Running, taken: threading.Event) -> float:
    """Wait for the hand-over; by how much the command was ahead of it. Negative is a violation."""
    assert taken.wait(PATIENCE)
    status = run.process.wait(PATIENCE)
    grants = store.grants["job"]
    assert len(grants) == 2
    assert not alive(run.command)
    assert status in (70, -signal.SIGKILL)
    before = run.last()
    assert run.last() == before, "something still beats"
    return grants[1].moment - before


@pytest.mark.req("B2", "B7", "holder killed -9")
@pytest.mark.parametrize("victim", ["front", "warden"])
def test_one_of_ours_is_killed(store: Store, tmp_path: Path, victim: str) -> None:
    with beating(store, tmp_path) as run, successor(store) as taken:
        os.kill(getattr(run, victim), signal.SIGKILL)
        assert handed_over(store, run, taken) > 0


@pytest.mark.req("B2", "B7")
def test_the_lock_is_free_at_once_when_the_front_is_killed(store: Store, tmp_path: Path) -> None:
    with beating(store, tmp_path, "--ttl", "3600") as run, successor(store) as taken:
        os.kill(run.front, signal.SIGKILL)
        assert handed_over(store, run, taken) > 0


@pytest.mark.req("B2", "B7", "client paused longer than its lease")
def test_the_warden_is_stopped_for_longer_than_the_lease(store: Store, tmp_path: Path) -> None:
    with beating(store, tmp_path) as run, successor(store) as taken:
        os.kill(run.warden, signal.SIGSTOP)
        assert handed_over(store, run, taken) > 0


@pytest.mark.req("B2", "B7", "client paused longer than its lease")
def test_the_front_is_stopped_and_nothing_is_lost(
    store: Store, locks: library.Locks, tmp_path: Path
) -> None:
    with beating(store, tmp_path) as run:
        os.kill(run.front, signal.SIGSTOP)
        assert locks.lock("job").acquire(timeout=1.3 * TTL) is None
        assert alive(run.command)
        os.kill(run.front, signal.SIGCONT)
        os.kill(run.front, signal.SIGQUIT)
        assert run.process.wait(PATIENCE) == 128 + signal.SIGQUIT
    assert len(store.grants["job"]) == 1


@pytest.mark.req("B2", "B7", "law 5", "one-way partition")
def test_the_store_falls_silent(store: Store, tmp_path: Path) -> None:
    with beating(store, tmp_path) as run, successor(store) as taken:
        with store.silence(run.warden):
            assert taken.wait(PATIENCE)
        assert handed_over(store, run, taken) > 0
        assert run.process.stderr is not None
        first, second = run.process.stderr.read().splitlines()
        assert "could not be renewed and ends in" in first
        assert "(TERM)" in first
        assert "the command was killed" in second


def _holder(store: Store) -> int:
    with library.connect(store.url) as locks:
        return int(locks.inspect("job")[0].holders[0].info["pid"])


@pytest.mark.req("B2", "B7")
def test_a_command_that_listens_has_its_grace(store: Store, tmp_path: Path) -> None:
    """TERM comes early enough for it to end by itself."""
    script = (
        "import signal, sys, time\n"
        "def end(*_): time.sleep(0.1); print('ended in peace', flush=True); sys.exit(4)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True); time.sleep(60)"
    )
    command = ("run", "job", "--ttl", "9", "--", sys.executable, "-c", script)
    with started(*command, url=store.url) as run:
        assert line(run) == "up"
        with store.silence(_holder(store)):
            assert line(run) == "ended in peace"
        assert run.wait(PATIENCE) == 70
        assert run.stderr is not None
        assert "the command has stopped" in run.stderr.read()


@pytest.mark.req("B2", "B7")
def test_a_stopped_command_is_ended_all_the_same(store: Store, tmp_path: Path) -> None:
    with beating(store, tmp_path, deaf=False) as run, successor(store) as taken:
        os.kill(run.command, signal.SIGSTOP)
        with store.silence(run.warden):
            assert taken.wait(PATIENCE)
        assert handed_over(store, run, taken) > 0


@pytest.mark.req("B2", "B7", "key deleted by hand, FLUSHALL")
def test_an_evicted_command_is_ended_at_the_next_renewal(
    store: Store, locks: library.Locks, tmp_path: Path
) -> None:
    with beating(store, tmp_path) as run:
        assert locks.evict("job") == 1
        assert run.process.wait(PATIENCE) == 70
        assert not alive(run.command)
        assert run.process.stderr is not None
        (said,) = run.process.stderr.read().splitlines()
        assert said.startswith("holdfast: the lock 'job' was lost: ")
        assert said.endswith("the command was killed")


@pytest.mark.req("B2", "B7")
def test_warn_lets_the_command_go_on(store: Store, locks: library.Locks) -> None:
    command = ("run", "job", "--ttl", "3", "--on-lost=warn", "--", "sh", "-c", "read x; exit 9")
    with started(*command, url=store.url, stdin=subprocess.PIPE) as run:
        until(lambda: locks.inspect("job"), "it holds")
        locks.evict("job")
        assert run.stderr is not None
        assert "goes on WITHOUT the lock" in run.stderr.readline()
        _, rest = run.communicate("\n")
        assert (run.returncode, rest) == (9, "")


@pytest.mark.req("B2", "B7")
def test_a_loss_that_shows_at_the_end_is_said(store: Store, locks: library.Locks) -> None:
    """Taken away, and nobody knew: the command ended before the next renewal."""
    command = ("run", "job", "--ttl", "600", "--", "sh", "-c", "read x")
    with started(*command, url=store.url, stdin=subprocess.PIPE) as run:
        until(lambda: locks.inspect("job"), "it holds")
        locks.evict("job")
        _, said = run.communicate("\n")
        assert run.returncode == 70
        assert "had been lost before the command ended (status 0)" in said


@pytest.mark.req("B7")
def test_a_store_that_goes_away_does_not_change_the_status(
    store: Store, locks: library.Locks
) -> None:
    """The command has ended; that the lock could not be given back is not its fault."""
    command = ("run", "job", "--", "sh", "-c", "read x; exit 3")
    with started(*command, url=store.url, stdin=subprocess.PIPE) as run:
        until(lambda: locks.inspect("job"), "it holds")
        with store.absence(_holder(store)):
            run.communicate("\n")
        assert run.returncode == 3


@pytest.mark.req("B7")
def test_nested_runs_end_together(store: Store, locks: library.Locks) -> None:
    inner = (sys.executable, "-m", "tests.cli.launch", "run", "inner", "--", "sleep", "60")
    with started("run", "outer", "--ttl", "3", "--", *inner, url=store.url) as run:
        until(lambda: len(locks.inspect()) == 2, "both are held")
        locks.evict("outer")
        assert run.wait(PATIENCE) == 70
    assert holdfast("run", "outer", "--no-wait", "--", "true", url=store.url).returncode == 0
