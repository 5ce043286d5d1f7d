"""Bugs that two reviews and the stress run found in our own sqlite backend, each as it was shown.

What they have in common is in docs/concepts/found-bugs.md.

Over 400 lines: a list of cases, each read by itself, that share one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Unavailable, aio, backends
from holdfast.backends.local import Call, Held
from holdfast.backends.sqlite import site as one_site
from holdfast.backends.sqlite import sites
from holdfast.backends.sqlite.post import Post
from holdfast.backends.sqlite.site import Site
from holdfast.ports import clock
from holdfast.types import Claim, Mode
from tests.faults.peers import Peer
from tests.faults.sqlite import LONG, SOON, in_line, sql
from tests.waiting import until


def site_of(locks: holdfast.Locks) -> Site:
    site: Site = locks._engine().backend._site  # type: ignore[attr-defined]
    return site


def refused(peer: Peer, name: str = "x") -> bool:
    return bool(peer.run(f"locks.lock({name!r}).acquire(blocking=False) is None"))


# -- two holders at once ---------------------------------------------------------------------------


@pytest.mark.req("R1")
def test_a_client_that_comes_while_the_last_one_closes_stays_alive(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had opened the presence file before the other closed it, and was dead to everybody."""
    last = holdfast.connect(url)
    with last.lock("y"):
        pass
    close, lease = Site.close, list[Any]()
    thread: list[threading.Thread] = []
    comes: list[holdfast.Locks] = []

    def take() -> None:
        comes.append(holdfast.connect(url))
        lease.append(comes[0].lock("x", ttl=LONG).acquire())

    def closing(site: Site) -> None:
        if not thread:
            thread.append(threading.Thread(target=take))
            thread[0].start()
            thread[0].join(0.3)  # it must wait for us
            assert not lease
        close(site)

    monkeypatch.setattr(Site, "close", closing)
    last.close()
    thread[0].join()
    with Peer(url) as peer:
        assert lease[0].held
        assert refused(peer)
    lease[0].release()
    # Not left to the garbage collector: it would come to what `closing` has while the class gives
    # up `closing`, and CPython 3.11 then lets another thread call what is being freed.
    comes[0].close()


@pytest.mark.req("R1", "SQLite: disk full, read-only, network filesystem")
def test_a_grant_that_was_rolled_back_is_never_told(locks: holdfast.Locks, url: str) -> None:
    holder = locks.lock("x", ttl=LONG).acquire()
    assert holder
    got: list[Any] = []
    with holdfast.connect(url) as other:
        waiter = threading.Thread(
            target=lambda: got.append(other.lock("x", ttl=LONG).acquire(timeout=5.0))
        )
        waiter.start()
        in_line(locks, 1)
        db = site_of(locks).db
        assert db is not None

        def deny(action: int, what: str | None, *_: Any) -> int:
            commit = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
            return sqlite3.SQLITE_DENY if commit else sqlite3.SQLITE_OK

        db.set_authorizer(deny)
        try:
            with pytest.raises(Unavailable):
                locks.evict("x")
        finally:
            db.set_authorizer(None)
        locks.inspect()  # what was left in the box would be delivered now
        waiter.join()
        assert got == [None]
        assert holder.held
        holder.renew()
        assert holder.release()


@pytest.mark.req("R1", "key deleted by hand, FLUSHALL", "B2")
def test_the_log_of_the_database_is_deleted_under_a_holder(
    url: str, path: Path, locks: holdfast.Locks
) -> None:
    lease = locks.lock("x", ttl=LONG, renew=0.1).acquire()
    assert lease
    for name in ("locks.db-wal", "locks.db-shm"):
        path.with_name(name).unlink()
    with Peer(url) as peer:
        # It may see a database without our claim; or we were first to notice, and saved it.
        if peer.run(
            f"bool(held.append(locks.lock('x', ttl={LONG}).acquire(timeout=0)) or held[-1])"
        ):
            assert lease.lost.wait(SOON)
        else:
            assert lease.held
            assert refused(peer)


@pytest.mark.req("R1", "key deleted by hand, FLUSHALL")
def test_a_renewal_in_another_epoch_does_not_look_dead(url: str, path: Path) -> None:
    with holdfast.connect(url) as locks, Peer(url) as peer:
        lease = locks.lock("x", ttl=LONG, renew=False).acquire()
        assert lease
        shutil.rmtree(f"{path}.holdfast")
        assert refused(peer)  # which begins another epoch
        site_of(locks)._verify_at = 1e99
        lease.renew()
        assert refused(peer)
        assert lease.held
        assert lease.release()


@pytest.mark.req("R1")
def test_somebody_in_this_process_reads_the_presence_file(
    url: str, path: Path, locks: holdfast.Locks
) -> None:
    """Record locks of a process are lost when it closes any descriptor of the file."""
    with locks.lock("x", ttl=LONG), Peer(url) as peer:
        Path(f"{path}.holdfast/presence").read_bytes()
        assert refused(peer)


# -- somebody, or everybody, blocked ---------------------------------------------------------------


@pytest.mark.req("KeyboardInterrupt", "law 4")
def test_an_interrupted_inspect_leaves_no_transaction_open(
    url: str, locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that catches Ctrl-C and idles would have locked everybody out."""
    with locks.lock("x"):
        pass
    store = site_of(locks).store
    with monkeypatch.context() as patched:

        def strike(*_: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(store, "_sweep", strike)
        with pytest.raises(KeyboardInterrupt):
            locks.inspect()
    with Peer(url) as peer:
        peer.acquire("lock('x')")


@pytest.mark.req("KeyboardInterrupt", "law 8")
@pytest.mark.filterwarnings("ignore")
def test_ctrl_c_during_a_fork_leaves_nothing_locked(locks: holdfast.Locks) -> None:
    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    before = signal.signal(signal.SIGALRM, strike)
    rng = random.Random(4711)
    struck = 0
    try:
        for _ in range(120):
            with locks.lock("x", ttl=LONG):
                pass
            pid = -1
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1.5e-3))
                pid = os.fork()
                if not pid:
                    os._exit(0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                if not pid:
                    os._exit(0)
                struck += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            with contextlib.suppress(ChildProcessError):
                # The pid is lost if it struck on the way out of fork; and there may be no child.
                # Not "any" without an end: the reaper of the test servers is one, and stays.
                os.waitpid(pid, 0) if pid > 0 else os.waitpid(-1, os.WNOHANG)
            assert not site_of(locks).entered
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.collect()  # here, and not in the next test: a connection that an interrupt left unclosed
        sys.unraisablehook = hook


@pytest.mark.req("law 8")
def test_a_fork_waits_for_an_import_of_a_backend() -> None:
    """The child would wait for ever for a thread that it does not have."""
    done = threading.Event()
    order: list[str] = []

    def importing() -> None:
        with backends._importing:
            done.set()
            time.sleep(0.2)
            order.append("imported")

    thread = threading.Thread(target=importing)
    thread.start()
    done.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os._exit(0)
    order.append("forked")
    os.waitpid(pid, 0)
    thread.join()
    assert order == ["imported", "forked"]


@pytest.mark.req("law 8", "fork after acquire")
def test_an_unfinished_statement_does_not_keep_the_file_open(
    path: Path, locks: holdfast.Locks
) -> None:
    """SQLite closes a connection when its last statement ends: a child would inherit it."""
    with locks.lock("x"):
        pass
    site = site_of(locks)
    site.cursor.execute("SELECT 1 UNION SELECT 2").fetchone()
    site.before_fork()
    try:
        assert not site._is_open()
    finally:
        site.mutex.release()


def test_a_message_to_the_dead_kills_nobody(url: str) -> None:
    """Command-line programs want to be ended by SIGPIPE; not by this one."""
    with Peer(url) as writer, Peer(url) as reader:
        writer.run("signal.signal(signal.SIGPIPE, signal.SIG_DFL)")
        lease = "lock('x', ttl=300)"
        writer.acquire(lease)
        reader.wait_for(lease)
        with holdfast.connect(url) as locks:
            in_line(locks, 1)
        # Stopped, so that it is alive when it is granted; dead before the message is written.
        writer.run("import holdfast.backends.sqlite.post as post")
        writer.run(f"setattr(post.Post, 'early', post.Post.tell); pid = {reader.pid}")
        writer.run(
            "setattr(post.Post, 'tell', lambda *a: (os.kill(pid, 9), time.sleep(0.3),"
            " post.Post.early(*a))[2])"
        )
        assert writer.run("held.pop().release()") is True


def test_busy_at_the_deadline_is_not_unavailable(
    locks: holdfast.Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_site, "COURTESY", 5.0)  # more than any machine needs
    lease = locks.lock("x", ttl=LONG).acquire()
    assert lease
    stop = threading.Event()

    def hammer() -> None:
        with contextlib.closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as db:
            while not stop.is_set():
                db.execute("BEGIN IMMEDIATE")
                time.sleep(0.003)
                db.execute("ROLLBACK")
                time.sleep(0.003)

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(20):
            assert locks.lock("x").acquire(timeout=0.004) is None
    finally:
        stop.set()
        thread.join()


# -- left behind -----------------------------------------------------------------------------------


def test_clients_that_nobody_closed_leave_in_the_end(url: str) -> None:
    async def main() -> None:
        locks = aio.connect(url)
        await locks.inspect()

    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            asyncio.run(main())
        client = holdfast.connect(url)
        client.inspect()
        del client
        gc.collect()
    with holdfast.connect(url) as locks:
        site = site_of(locks)
        until(lambda: threading.active_count() <= threads, "threads that nobody needs")
        assert site.users == 1
    assert str(site.path) not in sites._sites


def test_a_cancelled_close_can_be_made_again(url: str, path: Path) -> None:
    async def main() -> None:
        locks = aio.connect(url)
        async with locks.lock("x"):
            pass
        closing = asyncio.create_task(locks.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await locks.close()

    asyncio.run(main())
    assert str(path) not in sites._sites


def test_a_hard_link_is_refused(url: str, path: Path, tmp_path: Path) -> None:
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    (tmp_path / "other.db").hardlink_to(path)
    with (
        holdfast.connect(f"sqlite://{tmp_path}/other.db") as locks,
        pytest.raises(holdfast.Misconfigured, match="more than one name"),
    ):
        locks.lock("x").acquire()


# -- hostile day -----------------------------------------------------------------------------------


@pytest.mark.req("R9")
def test_who_was_not_told_because_the_pipe_was_full_looks_at_once(tmp_path: Path) -> None:
    """It did so at its next heartbeat: after a third of its ttl, though it held already."""
    calls: dict[str, Call] = {}
    sender = Post(str(tmp_path), 1, lambda _: True, {})
    reader = Post(str(tmp_path), 2, lambda _: True, calls)
    told: list[Held | None] = []
    try:
        for number in range(2000):  # as to a process that was stopped: nobody reads
            sender.tell(2, f"{number:032}", Held(1e9, None))
        sender.tell(2, "x" * 32, Held(1e9, None))
        reader.expect("x" * 32, told.append)
        until(lambda: told, "word to who was not told")
        assert told == [None]
    finally:
        sender.close()
        reader.close()
        reader.join(SOON)


@pytest.mark.req("R9")
def test_a_thousand_who_were_granted_at_once_do_not_go_through_one_another(
    locks: holdfast.Locks,
) -> None:
    """Each went through all holders to find itself: minutes for a few thousand."""
    semaphore = locks.semaphore("x", 100, ttl=LONG)
    leases = [semaphore.acquire() for _ in range(100)]
    site = site_of(locks)
    (owner,) = sql(site.path, "SELECT owner FROM holders WHERE fence IS NULL LIMIT 1")
    claim = Claim("x", str(owner[0]), Mode.PERMITS, LONG)
    assert site.db is not None
    said: list[str] = []
    site.db.set_trace_callback(said.append)
    try:
        assert isinstance(site.run(clock.now() + SOON, lambda: site.store.look(claim)), Held)
    finally:
        site.db.set_trace_callback(None)
    assert any("FROM holders" in statement for statement in said)
    assert all("owner = " in statement for statement in said if "FROM holders" in statement)
    assert all(lease and lease.release() for lease in leases)


def test_a_database_of_somebody_else_is_refused_and_not_changed(url: str, path: Path) -> None:
    """It was refused, after SQLite had been told to keep a write-ahead log from then on."""
    sql(path, "CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with (
        holdfast.connect(url) as locks,
        pytest.raises(holdfast.Misconfigured, match="belongs to another program"),
    ):
        locks.lock("x").acquire()
    assert path.read_bytes() == before
    assert sql(path, "PRAGMA journal_mode") == [("delete",)]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_not_a_file_is_refused_and_nothing_is_put_beside_it(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """It was said to be a broken disk, or to have a hard link."""
    make(tmp_path / "it")
    with (
        holdfast.connect(f"sqlite://{tmp_path}/it") as locks,
        pytest.raises(holdfast.Misconfigured, match="name a file"),
    ):
        locks.lock("x").acquire()
    assert os.listdir(tmp_path) == ["it"]


def test_without_descriptors_none_is_lost(url: str, path: Path) -> None:
    """Each try to open the files kept what it had opened before the last one failed."""
    with holdfast.connect(url) as locks:
        locks.inspect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    for room in range(12):
        with holdfast.connect(url, request_timeout=0.01) as locks:
            top = os.open(os.devnull, os.O_RDONLY)
            os.close(top)
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + room, hard))
            try:
                with contextlib.suppress(Unavailable):
                    locks.inspect()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(os.listdir("/proc/self/fd")) == before, room


@pytest.mark.req("asyncio cancellation at any await")
def test_who_waits_when_its_event_loop_ends_leaves_the_line(
    locks: holdfast.Locks, url: str
) -> None:
    """Nobody had closed the client, and nothing was held: there was no keeper yet. One began when
    the loop had already chosen whom to wait for, and came no further than the first of them."""
    lease = locks.lock("x", ttl=LONG).acquire()

    async def main() -> None:
        client = aio.connect(url)
        waiting = [asyncio.create_task(client.lock("x", ttl=LONG).acquire()) for _ in range(5)]
        while len((await client.inspect("x"))[0].waiters) < len(waiting):
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert [len(info.waiters) for info in locks.inspect("x")] == [0]
    assert lease
    assert lease.release()
