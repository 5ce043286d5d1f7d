"""sqlite://: processes that stop, files that vanish, clocks that differ."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLost, Unavailable, aio
from holdfast.backends.sqlite import schema
from tests.faults.crash import Pulse
from tests.faults.peers import Peer
from tests.faults.sqlite import LONG, SOON, in_line, sql

# -- pauses ----------------------------------------------------------------------------------------

INTRUDER = """
import sys
from holdfast.backends.sqlite.lockfile import LockFile
gate = LockFile(sys.argv[1])
while not gate.try_gate(): pass
print("inside", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def somebody_in_the_gate(path: Path) -> Iterator[int]:
    """A process that stays there, as one does that is stopped there."""
    script = [sys.executable, "-c", INTRUDER, f"{path}.holdfast/presence"]
    with subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as intruder:
        assert intruder.stdout is not None
        assert intruder.stdout.readline() == "inside\n"
        yield intruder.pid
        intruder.communicate()


@contextlib.contextmanager
def somebody_inside(path: Path) -> Iterator[int]:
    """The same, in the middle of a transaction."""
    with (
        somebody_in_the_gate(path) as pid,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db,
    ):
        db.execute("BEGIN IMMEDIATE")
        yield pid
        db.execute("ROLLBACK")


@pytest.mark.req("law 2", "R4")
def test_a_process_stopped_on_its_way_out_of_the_gate_is_in_nobodys_way(
    url: str, path: Path
) -> None:
    """Its transaction is over, so nothing but good order speaks against another one."""
    with holdfast.connect(url) as here:
        with here.lock("x"):
            pass
        with somebody_in_the_gate(path), holdfast.connect(url, request_timeout=SOON) as newcomer:
            lease = newcomer.lock("x", ttl=LONG).acquire()  # through the gate, as all at first
            assert lease
            with pytest.raises(holdfast.AcquireTimeout), here.lock("x", timeout=0.3):
                pass
            assert lease.release()


@pytest.mark.req("law 2", "server hangs")
def test_a_process_stopped_inside_makes_it_unavailable_and_says_who(url: str, path: Path) -> None:
    with holdfast.connect(url, request_timeout=2) as locks:
        lease = locks.lock("mine", ttl=LONG).acquire()
        assert lease
        with somebody_inside(path) as pid:
            began = time.monotonic()
            with pytest.raises(Unavailable, match=rf"process {pid} has been inside .*SIGSTOP"):
                locks.lock("x").acquire()
            assert time.monotonic() - began < SOON
            assert lease.held
        assert lease.release()
        with locks.lock("x"):
            pass


@pytest.mark.req("asyncio is not blocked", "B3")
def test_asyncio_goes_on_while_the_file_is_busy(url: str, path: Path) -> None:
    async def main() -> None:
        async with aio.connect(url) as locks:
            async with locks.lock("y"):
                pass
            longest = 0.0
            with somebody_inside(path), Pulse() as pulse:
                waiting = asyncio.create_task(locks.lock("x").acquire())
                until_done = asyncio.get_running_loop().time() + 0.5
                while (before := asyncio.get_running_loop().time()) < until_done:
                    await asyncio.sleep(0.001)
                    longest = max(longest, asyncio.get_running_loop().time() - before)
                assert not waiting.done()
            lease = await waiting
            assert lease
            await lease.release()
            assert longest < 0.4 + pulse.worst, "the loop stood still, and other threads did not"

    asyncio.run(main())


def test_a_person_with_a_shell_is_waited_for(url: str, path: Path, locks: holdfast.Locks) -> None:
    with locks.lock("x"):
        pass
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    ) as db:
        db.execute("BEGIN IMMEDIATE")
        threading.Timer(0.2, db.execute, ("ROLLBACK",)).start()
        with locks.lock("x"):
            pass
        db.execute("BEGIN IMMEDIATE")
        with (
            holdfast.connect(url, request_timeout=0.2) as hasty,
            pytest.raises(Unavailable, match="somebody keeps it locked"),
        ):
            hasty.lock("x").acquire()
        db.execute("ROLLBACK")


@pytest.mark.req("R3", "B1", "client paused longer than its lease")
def test_a_paused_holder_finds_a_newer_token(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as peer:
        peer.acquire("lock('x', ttl=0.4)")
        token = peer.run("held[-1].fence")
        peer.signal(signal.SIGSTOP)
        with locks.lock("x", timeout=SOON) as lease:
            assert lease.fence > token
            peer.signal(signal.SIGCONT)
            assert peer.run("held[-1].held") is False
            assert peer.run("held[-1].release()") is False
            assert lease.held


# -- files that vanish -----------------------------------------------------------------------------


@pytest.mark.req("key deleted by hand, FLUSHALL", "B1", "B2")
def test_the_file_is_deleted_under_a_holder(path: Path, locks: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=LONG, renew=0.1)
    lease = lock.acquire()
    assert lease
    for file in path.parent.glob("locks.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert lease.lost.wait(SOON), "noticed at a renewal"
    with locks.lock("x") as successor:
        assert successor.fence > lease.fence
        assert path.exists()
        assert sql(path, "SELECT count(*) FROM holders") == [(1,)]


@pytest.mark.req("key deleted by hand, FLUSHALL", "R1")
def test_the_folder_of_presence_is_deleted_under_a_holder(url: str, path: Path) -> None:
    """Then nobody can tell who lives: a claim lasts until its time is over, and not shorter."""
    with Peer(url) as peer, holdfast.connect(url) as locks:
        peer.acquire("lock('x', ttl=8.0, renew=False)")
        shutil.rmtree(f"{path}.holdfast")
        assert locks.lock("x", timeout=0.2).acquire() is None
        with locks.lock("x", timeout=2 * SOON, ttl=LONG):
            assert peer.run("held[-1].held") is False
            assert peer.run("locks.lock('x').acquire(blocking=False) is None")
        # And from now on deaths are noticed again.
        peer.acquire(f"lock('x', ttl={LONG})")
        peer.kill()
        assert locks.lock("x").acquire(blocking=False)


@pytest.mark.req("host suspended", "R2", "B1")
def test_after_a_restart_of_the_host_nothing_is_held(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer(url) as peer:
        peer.acquire(f"lock('x', ttl={LONG})")
        token = peer.run("held[-1].fence")
        peer.kill()
    # As if it were the last boot that wrote this; and the clock has been set back meanwhile. Its
    # process is taken for alive until the boot is seen to be another.
    sql(path, ANOTHER_BOOT)
    sql(path, "UPDATE holders SET process = 0")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    with holdfast.connect(url) as locks, locks.lock("x", timeout=SOON) as lease:
        assert lease.fence > token


ANOTHER_BOOT = "UPDATE state SET epoch = 'another:1'"


@pytest.mark.req("R1", "SQLite: disk full, read-only, network filesystem")
def test_two_kernels_at_one_file_are_noticed(url: str, path: Path, locks: holdfast.Locks) -> None:
    with locks.lock("x"):
        pass
    sql(path, ANOTHER_BOOT)
    with pytest.raises(Unavailable, match="two kernels"):
        locks.lock("x", timeout=0.3).acquire()


@pytest.mark.req("R1", "containers share the file")
def test_a_container_with_a_boot_id_of_its_own_is_refused_while_others_live(
    url: str, path: Path
) -> None:
    """It would take a restart of the host for granted, and wipe what is held."""
    with Peer(url) as peer, holdfast.connect(url) as locks:
        peer.acquire(f"lock('x', ttl={LONG})")
        sql(path, ANOTHER_BOOT)
        with pytest.raises(Unavailable, match="same kernel"):
            locks.lock("x", timeout=0.3).acquire()
        assert sql(path, "SELECT count(*) FROM holders") == [(1,)]


@pytest.mark.req("client wall clock +-1 h", "B1")
def test_the_wall_clock_decides_nothing(
    url: str, locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = []
    for shift in (0, 3600, -3600, 0, -86400, 86400):
        real = time.time
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda real=real, shift=shift: real() + shift)
            with locks.lock("x", ttl=LONG) as lease:
                tokens.append(lease.fence)
                assert lease.held
            with holdfast.connect(url) as other, other.lock("x", ttl=LONG) as lease:
                tokens.append(lease.fence)
    assert tokens == sorted(set(tokens))


def test_a_coarse_clock_still_gives_increasing_tokens(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locks.lock("x"):
        pass
    epoch = locks._engine().backend._site.epoch  # type: ignore[attr-defined]
    epoch.fine = False
    moment = schema.now()
    monkeypatch.setattr(schema, "now", lambda: moment)
    tokens = []
    for _ in range(5):
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        tokens.append(lease.fence)
        lease.release()
    assert tokens == sorted(set(tokens))


@pytest.mark.req("B1", "law 7")
def test_a_token_is_dated_when_the_lock_is_taken_and_not_before(
    url: str, locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may come and go between the beginning of an attempt and its turn in the file."""
    with locks.lock("x"):
        pass
    now = schema.now
    with Peer(url) as peer:
        peer.run("locks.inspect()")
        # Neither goes through the gate now and then, to see whether the files are the same.
        peer.run("setattr(locks._engine().backend._site, '_verify_at', 1e99)")
        locks._engine().backend._site._verify_at = 1e99  # type: ignore[attr-defined]
        others: list[int] = []

        def slow_clock() -> float:
            moment = now()
            if not others:
                others.append(0)
                peer.acquire("lock('x')")
                others.append(peer.run("held[-1].fence"))
                peer.run("held.pop().release()")
            return moment

        monkeypatch.setattr(schema, "now", slow_clock)
        with locks.lock("x") as lease:
            assert len(others) == 2, "the other one was let in at the first look at the clock"
            assert lease.fence > others[1]


@pytest.mark.req("R1", "containers share the file")
def test_a_container_with_a_clock_of_its_own(url: str, locks: holdfast.Locks) -> None:
    """In a time namespace the boot clock is another; the file's times are the host's."""
    user = ["--user", "--map-root-user"] if os.getuid() != 0 else []
    with Peer(url, "unshare", *user, "--fork", "--time", "--boottime", "100000") as peer:
        assert peer.run("holdfast.ports.clock.now()") > schema.now() + 50000
        peer.acquire(f"lock('x', ttl={LONG})")
        assert LONG - SOON < peer.run("held[-1].remaining()") <= LONG
        (info,) = locks.inspect("x")
        assert LONG - SOON < (info.holders[0].remaining or 0) <= LONG
        token = peer.run("held[-1].fence")
        waiting: list[int] = []

        def wait() -> None:
            with locks.lock("x", ttl=LONG, timeout=SOON) as lease:
                waiting.append(lease.fence)
                assert LONG - SOON < lease.remaining() <= LONG

        thread = threading.Thread(target=wait)
        thread.start()
        in_line(locks, 1)
        assert peer.run("held.pop().release()")
        thread.join()
        assert waiting[0] > token


@pytest.mark.req("R21", "B2")
def test_loss_is_raised_when_a_holder_is_evicted(locks: holdfast.Locks, url: str) -> None:
    with Peer(url) as peer, pytest.raises(LeaseLost), locks.lock("x", renew=0.05) as lease:
        assert peer.run("locks.evict('x')") == 1
        assert lease.lost.wait(SOON)
