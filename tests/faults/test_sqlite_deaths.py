"""sqlite://: processes that die while they hold or wait, and processes that fork."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import aio
from tests.faults.peers import Peer, PeerError
from tests.faults.sqlite import LONG, SOON, in_line, sql, stand_in_line

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
        stand_in_line(locks, f"lock('x', ttl={LONG})", one, two, three)
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
        stand_in_line(locks, f"lock('x', ttl={LONG})", first, second)
        first.kill()  # and no look at the line, which would put it right
        holder.kill()
        assert second.result() is True


@pytest.mark.req("R2", "a death is noticed at once", "law 4")
def test_who_waits_behind_one_that_leaves_notices_the_holders_death(
    url: str, locks: holdfast.Locks
) -> None:
    with Peer(url) as holder, Peer(url) as first, Peer(url) as second:
        holder.acquire(f"lock('x', ttl={LONG})")
        stand_in_line(locks, f"lock('x', ttl={LONG})", first, second)
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
        stand_in_line(locks, f"lock('x', ttl={LONG})", first, second, third)
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
        stand_in_line(locks, semaphore, first, second)
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
        stand_in_line(locks, f"lock('x', ttl={LONG})", first, second)
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
            signal.alarm(4 * int(SOON))  # a hang shows as a death
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
