"""What processes do to one another through a sqlite:// file: deaths, pauses, forks, deleted files.

Every lease here has a ttl far longer than the test (LONG), unless its expiry is what is tested: so
whoever gets a lock in time did not wait for an expiry, nor for a heartbeat (a third of the ttl).
"""

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
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLost, Unavailable, aio
from holdfast.backends.sqlite import schema
from tests.faults.peers import Peer, PeerError

LONG = 300.0
SOON = 10.0  # far less than a heartbeat of LONG, and long enough for a busy machine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite://{path}"


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


def until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def in_line(locks: holdfast.Locks, count: int, name: str = "x") -> None:
    until(lambda: sum(len(i.waiters) for i in locks.inspect(name)) == count, f"{count} in line")


def sql(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as db:
        return db.execute(statement, values).fetchall()


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.req("R2", "holder killed -9", "a death is noticed at once")
def test_a_dead_holder_is_noticed_at_once_by_who_waits(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as peer:
        peer.acquire(f"lock('x', ttl={LONG})")

        def kill() -> None:
            in_line(locks, 1)
            peer.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        lease = locks.lock("x", ttl=LONG).acquire(timeout=SOON)
        assert lease
        lease.release()
        thread.join()


@pytest.mark.req("R2", "holder killed -9", "a death is noticed at once")
def test_a_dead_holder_is_noticed_by_a_try(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as peer:
        peer.acquire(f"lock('x', ttl={LONG})")
        assert locks.lock("x").acquire(blocking=False) is None
        peer.kill()
        lease = locks.lock("x").acquire(blocking=False)
        assert lease
        lease.release()


@pytest.mark.req("R2", "a death is noticed at once")
def test_an_asyncio_waiter_notices_a_dead_holder(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as locks:
            with Peer(url) as peer:
                peer.acquire(f"lock('x', ttl={LONG})")
                waiting = asyncio.create_task(locks.lock("x", ttl=LONG).acquire(timeout=SOON))
                while not any(info.waiters for info in await locks.inspect("x")):
                    await asyncio.sleep(0.002)
                peer.kill()
                lease = await waiting
                assert lease
                await lease.release()

    asyncio.run(main())


@pytest.mark.req("R2", "waiter killed", "several dead waiters in a row")
def test_dead_waiters_are_passed_over(url: str, locks: holdfast.Locks) -> None:
    lease = locks.lock("x", ttl=LONG).acquire()
    assert lease
    with Peer(url) as one, Peer(url) as two, Peer(url) as three:
        for count, peer in enumerate((one, two, three), 1):
            peer.wait_for(f"lock('x', ttl={LONG})")
            in_line(locks, count)
        one.kill()
        two.kill()
        assert lease.release()
        assert three.result() is True


@pytest.mark.req("R2", "waiter killed", "a death is noticed at once")
def test_who_waits_behind_a_dead_waiter_notices_the_holders_death(
    url: str, locks: holdfast.Locks
) -> None:
    """Each depends on who is before it; when that one dies it must find somebody else."""
    with Peer(url) as holder, Peer(url) as first, Peer(url) as second:
        holder.acquire(f"lock('x', ttl={LONG})")
        for count, peer in enumerate((first, second), 1):
            peer.wait_for(f"lock('x', ttl={LONG})")
            in_line(locks, count)
        first.kill()  # and no look at the line, which would put it right
        holder.kill()
        assert second.result() is True


@pytest.mark.req("R2", "a death is noticed at once", "law 4")
def test_who_waits_behind_one_that_leaves_notices_the_holders_death(
    url: str, locks: holdfast.Locks
) -> None:
    with Peer(url) as holder, Peer(url) as first, Peer(url) as second:
        holder.acquire(f"lock('x', ttl={LONG})")
        for count, peer in enumerate((first, second), 1):
            peer.wait_for(f"lock('x', ttl={LONG})")
            in_line(locks, count)
        first.signal(signal.SIGINT)
        with pytest.raises(PeerError, match="KeyboardInterrupt"):
            first.result()
        in_line(locks, 1)
        holder.kill()
        assert second.result() is True


@pytest.mark.req("R2", "a death is noticed at once", "law 4")
def test_who_waits_behind_one_that_leaves_notices_deaths_further_ahead(
    url: str, locks: holdfast.Locks
) -> None:
    """The third depended on the second, which lives on: it must be told on whom it depends now."""
    with Peer(url) as holder, Peer(url) as first, Peer(url) as second, Peer(url) as third:
        holder.acquire(f"lock('x', ttl={LONG})")
        for count, peer in enumerate((first, second, third), 1):
            peer.wait_for(f"lock('x', ttl={LONG})")
            in_line(locks, count)
        second.signal(signal.SIGINT)
        with pytest.raises(PeerError, match="KeyboardInterrupt"):
            second.result()
        in_line(locks, 2)
        first.kill()  # and no look at the line, which would put it right
        holder.kill()
        assert third.result() is True


@pytest.mark.req("R2", "a death is noticed at once", "B5")
def test_every_holder_of_a_semaphore_is_watched(url: str, locks: holdfast.Locks) -> None:
    """The second in line depends on the first, which is then granted beside another holder: whose
    death must be noticed too."""
    semaphore = f"semaphore('x', 2, ttl={LONG})"
    with Peer(url) as a, Peer(url) as b, Peer(url) as first, Peer(url) as second:
        a.acquire(semaphore)
        b.acquire(semaphore)
        for count, peer in enumerate((first, second), 1):
            peer.wait_for(semaphore)
            in_line(locks, count)
        a.run("held.pop().release()")
        assert first.result() is True
        b.kill()
        assert second.result() is True


@pytest.mark.req("R2", "R10", "a death is noticed at once")
def test_a_writer_notices_the_death_of_a_reader_that_came_in_beside_others(
    url: str, locks: holdfast.Locks
) -> None:
    read = f"rwlock('x', ttl={LONG}, fair=False).read()"
    with Peer(url) as a, Peer(url) as b, Peer(url) as writer:
        a.acquire(read)
        writer.wait_for(f"rwlock('x', ttl={LONG}).write()")
        in_line(locks, 1)
        b.acquire(read)  # past the writer: fair=False permits it
        a.run("held.pop().release()")
        b.kill()
        assert writer.result() is True


@pytest.mark.req("R2", "waiter killed")
def test_a_waiter_killed_at_the_moment_it_is_granted(url: str, locks: holdfast.Locks) -> None:
    with Peer(url) as first, Peer(url) as second:
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        for count, peer in enumerate((first, second), 1):
            peer.wait_for(f"lock('x', ttl={LONG})")
            in_line(locks, count)
        first.signal(signal.SIGSTOP)  # it cannot answer, and is dead soon
        assert lease.release()
        first.kill()
        assert second.result() is True


def test_pipes_of_dead_processes_are_swept_by_the_next_who_comes(url: str, path: Path) -> None:
    with Peer(url) as peer:
        peer.acquire("lock('x')")
        peer.kill()
    beside = path.with_name("locks.db.holdfast")
    assert len(list(beside.glob("*.pipe"))) == 1
    with holdfast.connect(url) as locks:
        with locks.lock("y"):
            assert len(list(beside.glob("*.pipe"))) == 1  # our own
        assert sql(path, "SELECT count(*) FROM holders") == [(0,)]
    assert not list(beside.glob("*.pipe"))


# -- forks -----------------------------------------------------------------------------------------


def forked(work: Callable[[], None]) -> int:
    """The exit status of a forked child that did `work`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads here: which is the point
        pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.alarm(int(SOON))
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.req("fork after acquire", "law 8", "B3")
def test_a_parents_death_frees_its_lock_though_its_child_lives(url: str) -> None:
    """flock would survive in the child; so would a connection that it inherited."""
    with Peer(url) as peer, holdfast.connect(url) as locks:
        peer.acquire(f"lock('x', ttl={LONG})")
        child = peer.run("os.fork() or (time.sleep(60), os._exit(0))")
        try:
            peer.kill()
            lease = locks.lock("x", ttl=LONG).acquire(timeout=SOON)
            assert lease
            lease.release()
        finally:
            os.kill(child, signal.SIGKILL)  # ours, by way of the peer


@pytest.mark.req("fork after acquire", "law 8", "B3")
def test_forks_among_busy_threads(url: str, path: Path, locks: holdfast.Locks) -> None:
    """SQLite forbids to carry a connection through a fork, even without using it: the child's own
    connection would be believed to have the parent's locks."""
    stop = threading.Event()
    inside = [0]

    def work() -> None:
        while not stop.is_set():
            with locks.lock("x", ttl=LONG):
                inside[0] += 1
                assert inside[0] == 1
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        for _ in range(5):
            with locks.lock("x", ttl=LONG, timeout=SOON) as lease:
                assert lease.held

    try:
        assert [forked(child) for _ in range(12)] == [0] * 12
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert locks.inspect() == []


# -- pauses ----------------------------------------------------------------------------------------

INTRUDER = """
import sys
from holdfast.backends.sqlite.presence import Presence
gate = Presence(sys.argv[1])
while not gate.try_gate(): pass
print("inside", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def somebody_inside(path: Path) -> Iterator[int]:
    """A process that has entered the gate and stays there, as one does that is stopped there."""
    script = [sys.executable, "-c", INTRUDER, f"{path}.holdfast/presence"]
    with subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as intruder:
        assert intruder.stdout is not None
        assert intruder.stdout.readline() == "inside\n"
        # The gate is for those who find the database busy: so it must be busy as well.
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield intruder.pid
            db.execute("ROLLBACK")
        intruder.communicate()


@pytest.mark.req("law 2", "server hangs")
def test_a_process_stopped_inside_makes_it_unavailable_and_says_who(url: str, path: Path) -> None:
    with holdfast.connect(url, request_timeout=0.3) as locks:
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
            with somebody_inside(path):
                waiting = asyncio.create_task(locks.lock("x").acquire())
                until_done = asyncio.get_running_loop().time() + 0.5
                while (before := asyncio.get_running_loop().time()) < until_done:
                    await asyncio.sleep(0.001)
                    longest = max(longest, asyncio.get_running_loop().time() - before)
                assert not waiting.done()
            lease = await waiting
            assert lease
            await lease.release()
            assert longest < 0.4, "the loop stood still"

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
        peer.acquire("lock('x', ttl=1.0, renew=False)")
        shutil.rmtree(f"{path}.holdfast")
        assert locks.lock("x", timeout=0.2).acquire() is None
        with locks.lock("x", timeout=SOON, ttl=LONG):
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


ANOTHER_BOOT = "UPDATE state SET boot = 'another', epoch = 'another:1'"


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
