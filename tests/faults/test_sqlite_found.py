"""Bugs that two reviews and the stress run found in our own sqlite backend, each as it was shown.

What they have in common is in docs/concepts/found-bugs.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Unavailable, aio, backends
from holdfast.backends.sqlite import registry
from holdfast.backends.sqlite.site import Site
from tests.faults.peers import Peer
from tests.faults.sqlite import LONG, SOON, in_line
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

    def take() -> None:
        lease.append(holdfast.connect(url).lock("x", ttl=LONG).acquire())

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


@pytest.mark.req("R1", "SQLite: disk full, read-only, network filesystem")
def test_a_grant_that_was_rolled_back_is_never_told(locks: holdfast.Locks, url: str) -> None:
    holder = locks.lock("x", ttl=LONG).acquire()
    assert holder
    got: list[Any] = []
    with holdfast.connect(url) as other:
        waiter = threading.Thread(
            target=lambda: got.append(other.lock("x", ttl=LONG).acquire(timeout=1.0))
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


def test_busy_at_the_deadline_is_not_unavailable(locks: holdfast.Locks, path: Path) -> None:
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
    assert str(site.path) not in registry._sites


def test_a_cancelled_close_can_be_made_again(url: str) -> None:
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
    assert not registry._sites


def test_a_hard_link_is_refused(url: str, path: Path, tmp_path: Path) -> None:
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    (tmp_path / "other.db").hardlink_to(path)
    with (
        holdfast.connect(f"sqlite://{tmp_path}/other.db") as locks,
        pytest.raises(holdfast.Misconfigured, match="more than one name"),
    ):
        locks.lock("x").acquire()
