"""A process that has as many threads as it may have: nothing raises what is not ours, nothing that
was begun stays in a store, and no callback runs where it keeps leases from being renewed."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import holdfast
from holdfast import LeaseLost, Unavailable
from holdfast.backends.etcd.hub import Hub, Watch
from holdfast.backends.redlock.nodes import Debt, Login, Member
from holdfast.backends.redlock.payer import Payer
from holdfast.backends.sql.sweep import Sweeper
from holdfast.core.port import NoThread
from holdfast.ports import bare
from holdfast.ports import thread as port
from holdfast.ports.clock import now
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Claim

pytestmark = pytest.mark.req("B2", "law 4")

Limit = Callable[[], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """From now on holdfast's own threads are one too many; those of the test are not."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(port, "_callers", port._Callers())  # nobody stands by for other tests
    return lambda: monkeypatch.setattr(threading.Thread, "start", refused)


@pytest.fixture
def locks() -> Iterator[holdfast.Locks]:
    with holdfast.connect("memory://no-thread") as client:
        yield client


def nothing(loss: LeaseLost) -> None:
    pass


@pytest.mark.req("law 5")
def test_a_callback_that_blocks_keeps_no_lease_from_being_renewed(
    locks: holdfast.Locks, limit: Limit
) -> None:
    """It ran in the keeper's thread, when no other could be started."""
    gate, called = threading.Event(), threading.Semaphore(0)

    def block(loss: LeaseLost) -> None:
        called.release()
        gate.wait(20)

    kept = locks.lock("kept", ttl=0.6, renew=0.1).acquire()
    lost = [
        locks.lock(f"n{number}", ttl=0.05, renew=False, on_lost=block).acquire()
        for number in range(3)
    ]
    limit()
    try:
        assert kept
        assert called.acquire(timeout=5)
        assert not kept.lost.wait(1.2)
        assert kept.held
    finally:
        gate.set()
    assert called.acquire(timeout=5)  # the others are called by who stands by
    assert called.acquire(timeout=5)
    assert all(lease and not lease.held for lease in lost)
    assert kept.release()


def test_who_cannot_be_called_is_told_when_asking_for_it(
    locks: holdfast.Locks, limit: Limit
) -> None:
    lease = locks.lock("x").acquire()
    assert lease
    limit()
    with pytest.raises(Unavailable, match="no thread for holdfast-on-lost can be started"):
        lease.on_lost(nothing)
    for asked in (
        locks.lock("y", on_lost=nothing),
        locks.lock("y", on_lost=nothing, reentrant=True),
        locks.multi("y", "z", on_lost=nothing),
        locks.stripes("y", 2, on_lost=nothing).any(),
    ):
        with pytest.raises(Unavailable, match="no thread"):
            asked.acquire(timeout=1)
    assert [info.name for info in locks.inspect()] == ["x"]
    assert lease.release()


def test_what_nobody_would_keep_is_not_taken(
    locks: holdfast.Locks, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was held, and not renewed: a line in the log said so."""
    limit()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"no thread for holdfast-keeper .*ulimit -u"):
            locks.lock("x").acquire(timeout=1)
    assert locks.inspect() == []
    assert locks._engine().keeper.idle
    monkeypatch.undo()  # some have ended
    with locks.lock("x", ttl=0.3, renew=0.1) as lease:
        assert not lease.lost.wait(0.6)


def test_who_comes_while_its_keeper_is_being_started_waits_to_hear_whether_it_is(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was refused, and the second held what nobody renewed."""
    start, starting, go_on = threading.Thread.start, threading.Event(), threading.Event()

    def refused(thread: threading.Thread) -> None:
        if thread.name != "holdfast-keeper":
            return start(thread)
        starting.set()
        go_on.wait(0.5)
        raise RuntimeError("can't start new thread")

    said: list[Any] = []

    def take(name: str) -> None:
        try:
            said.append(locks.lock(name).acquire(timeout=1))
        except Unavailable as error:
            said.append(error)

    monkeypatch.setattr(threading.Thread, "start", refused)
    first = threading.Thread(target=take, args=("x",))
    first.start()
    assert starting.wait(10)
    take("y")
    go_on.set()
    first.join(10)
    assert all(isinstance(each, Unavailable) for each in said)
    assert locks.inspect() == []


def test_who_waits_for_any_stripe(locks: holdfast.Locks, limit: Limit) -> None:
    with locks.stripes("s", 2).all():
        limit()
        with pytest.raises(Unavailable, match="no thread for holdfast-stripe"):
            locks.stripes("s", 2).any().acquire(timeout=5)
        assert not any(info.waiters for info in locks.inspect())


def test_sqlite_waits_without_its_threads(tmp_path: Path, limit: Limit) -> None:
    url = f"sqlite:///{tmp_path}/locks"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        keeps = there.lock("other").acquire()
        lease = here.lock("x").acquire()
        assert keeps
        assert lease
        limit()
        assert there.lock("x").acquire(timeout=0.2) is None
        got: list[Any] = []
        waiter = threading.Thread(
            target=lambda: got.append(there.lock("x", ttl=0.6).acquire(timeout=20))
        )
        waiter.start()
        until(lambda: here.inspect("x")[0].waiters, "in line")
        lease.release()
        waiter.join(10)
        assert got[0].release()
        assert keeps.release()
        assert here.inspect() == []


def test_zookeeper_says_so(limit: Limit) -> None:
    pytest.importorskip("kazoo")
    with holdfast.connect("zk://127.0.0.1:1/", request_timeout=0.3) as locks:
        with pytest.raises(Unavailable, match="no thread for holdfast-keeper"):
            limit()
            locks.lock("x").acquire()
        with pytest.raises(Unavailable, match="no thread for holdfast-sitter"):
            locks.inspect()


def test_etcd_does_not_wait_for_what_nobody_watches(limit: Limit) -> None:
    """It slept until its deadline, beside a free lock."""
    hub = Hub(object(), ThreadPort())  # type: ignore[arg-type]
    watch = Watch(b"x", 1, lambda _: None)
    limit()
    with pytest.raises(Unavailable, match="no thread for holdfast-etcd-watch"):
        hub.add(watch)
    hub.remove(watch)


@pytest.mark.parametrize("strategy", ["advisory", "for-update"])
@pytest.mark.parametrize("scheme", ["mysql", "postgres"])
def test_a_connection_that_nobody_would_look_after_is_not_asked_for(
    scheme: str, strategy: str, limit: Limit
) -> None:
    """Its lock was held without a sitter: nobody told of its loss, and nobody ended it in time."""
    pytest.importorskip({"mysql": "pymysql", "postgres": "psycopg"}[scheme])
    with holdfast.connect(f"{scheme}://u@127.0.0.1:1/d?strategy={strategy}") as locks:
        backend: Any = locks._engine().backend
        claim = Claim("x", "owner")
        with pytest.MonkeyPatch.context() as patched:
            limit()
            with pytest.raises(NoThread, match="no thread for holdfast-sitter"):
                drive(backend.attempt(claim, False, now() + 5))
            # At the interpreter's exit its end is near in any case.
            patched.setattr(bare, "_exiting", lambda: True)
            with pytest.raises(Unavailable, match="refused"):
                drive(backend.attempt(claim, False, now() + 5))
        assert not backend._records


def test_sweeping_waits_for_a_thread(limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = threading.Semaphore(0)

    async def work(after: bytes, idle: float, deadline: float) -> tuple[int, bytes | None]:
        rounds.release()
        return 0, None

    sweeper = Sweeper(ThreadPort(), work, 1.0)
    limit()
    sweeper.perhaps(now() + 3600)
    drive(sweeper.stop(now() + 1))
    assert not rounds.acquire(blocking=False)
    monkeypatch.undo()
    sweeper.perhaps(now() + 7200)
    assert rounds.acquire(timeout=5)
    drive(sweeper.stop(now() + 5))


class Nodes:
    """A council whose members take what they are owed."""

    def __init__(self) -> None:
        self.members = [Member(("n", 1), Login("", "", 0), 0.0)]

    async def ask(self, letter: Any, ballot: Any, *_: Any) -> None:
        for member in self.members:
            member.paid(member.due())

    async def settle(self) -> None: ...


def test_what_is_owed_to_a_node_is_paid_when_there_is_a_thread_again(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: Any = Nodes()
    payer, [member] = Payer(ThreadPort(), nodes, 1.0), nodes.members
    limit()
    member.owe(Debt("one", now() + 60, b"", b""))
    assert list(member.debts) == ["one"]
    monkeypatch.undo()
    member.owe(Debt("two", now() + 60, b"", b""))
    until(lambda: not member.debts, "both are paid")
    drive(payer.close())


@pytest.mark.req("interpreter exits holding a lock")
def test_the_clock_still_runs(limit: Limit, locks: holdfast.Locks) -> None:
    """A keeper that is there goes on: only what is new is refused."""
    lease = locks.lock("x", ttl=0.3, renew=0.1).acquire()
    limit()
    began = now()
    assert lease
    assert not lease.lost.wait(0.6)
    assert lease.held
    assert locks.lock("x").acquire(timeout=0.1) is None
    assert now() - began < 5


def test_it_travels_between_processes() -> None:
    """It could not be unpickled: one such answer ended a whole pool of processes."""
    for exiting in (False, True):
        error = NoThread("holdfast-keeper", RuntimeError("can't start new thread"), exiting)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is NoThread
        assert (str(again), again.exiting) == (str(error), exiting)
