"""zk://: bugs that a day of hostile scripts found: rights that are missing, what others have
written, servers that have forgotten, and event loops that stand still.

Over 400 lines: what was found of one store stands together.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.security import ACL, Id, make_digest_acl  # type: ignore[import-untyped]

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.zookeeper import ending, pool, session
from holdfast.backends.zookeeper.cells import HEADER
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.testing import FaultProxy
from holdfast.types import Unknown
from tests.faults.zookeeper import LONG, Raw, kazoo, nodes, sessions, wires
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = pytest.mark.servers

READ, CREATE, DELETE, ADMIN = 1, 4, 8, 16
DELETE_CODE = (2).to_bytes(4, "big")


def anybody(permissions: int) -> list[Any]:
    return [ACL(permissions | ADMIN, Id("world", "anyone"))]


@pytest.fixture
def base() -> str:
    return f"/found-{uuid.uuid4().hex}"


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer, base: str) -> str:
    return f"zk://{HOST}:{zookeeper_server.port}{base}"


@pytest.fixture
def client(zookeeper_server: ZooKeeperServer) -> Iterator[Any]:
    with kazoo(zookeeper_server.port) as client:
        yield client


# -- rights that are missing -----------------------------------------------------------------------


@pytest.mark.req("R50", "R7", "law 4", "wrong credentials")
@pytest.mark.parametrize("blocking", [False, True])
def test_a_line_that_must_not_be_read(url: str, base: str, client: Any, blocking: bool) -> None:
    """Each attempt left a node and took it for deleted by somebody else, so there was another, as
    fast as the server could, and a `try` never came back."""
    client.create(f"{base}/x", b"", acl=anybody(CREATE | DELETE), makepath=True)
    with holdfast.connect(url) as locks:
        with pytest.raises(Misconfigured, match="ACL"):
            locks.lock("x").acquire(blocking)
        client.set_acls(f"{base}/x", anybody(READ | CREATE | DELETE))
        assert nodes(client, f"{base}/x") == []
        with locks.lock("x", timeout=LONG):
            pass


@pytest.mark.req("R50", "law 3", "wrong credentials")
def test_a_list_that_was_refused_does_not_say_that_a_node_is_gone(
    url: str, base: str, client: Any
) -> None:
    """A claim that asks again, and one that is withdrawn before its path is known."""
    with Raw(url) as raw:
        grant = raw.grant("x")
        client.set_acls(f"{base}/x", anybody(CREATE | DELETE))
        with pytest.raises(Misconfigured, match="ACL"):
            drive(raw.backend.attempt(grant.claim, True, raw.port.now() + LONG))
        client.set_acls(f"{base}/x", anybody(READ | CREATE | DELETE))
        assert nodes(client, f"{base}/x") == []
        grant = raw.grant("x")
        raw.backend._records[grant.claim.owner].path = None
        client.set_acls(f"{base}/x", anybody(CREATE | DELETE))
        refused = drive(raw.backend.withdraw(grant.claim, False, raw.port.now() + LONG))
        assert isinstance(refused, Unknown)
        client.set_acls(f"{base}/x", anybody(READ | CREATE | DELETE))
        drive(raw.backend.withdraw(grant.claim, False, raw.port.now() + LONG))
        assert nodes(client, f"{base}/x") == []


@pytest.mark.req("R50", "R7", "wrong credentials")
def test_a_try_whose_node_must_not_be_deleted(url: str, base: str, client: Any) -> None:
    """It said that the store did not answer, after the whole `request_timeout`."""
    client.create(f"{base}/x", b"", acl=anybody(READ | CREATE), makepath=True)
    with holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire(timeout=LONG)
        assert lease
        with pytest.raises(Misconfigured, match="ACL"):
            locks.lock("x").acquire(blocking=False)
        client.set_acls(f"{base}/x", anybody(READ | CREATE | DELETE))


@pytest.mark.req("B5", "wrong credentials")
def test_cells_that_must_not_be_made(url: str, base: str, client: Any) -> None:
    """It was asked for again and again, and then the server was said to be silent."""
    client.create(base, b"", acl=anybody(READ))
    with holdfast.connect(url) as locks, pytest.raises(Misconfigured, match="ACL"):
        locks.latch("x", 2).count_down()


@pytest.mark.req("B5", "wrong credentials")
def test_who_may_not_ask_the_servers_clock_is_told(
    zookeeper_server: ZooKeeperServer, base: str
) -> None:
    """Whether a cell with a ttl is over is known by who may write beside it."""
    where = f"{HOST}:{zookeeper_server.port}{base}"
    with (
        holdfast.connect(f"zk://alice:s3cret@{where}") as alice,
        holdfast.connect(f"zk://{where}") as nobody,
    ):
        alice.latch("x", 2).count_down()
        with pytest.raises(Misconfigured, match="ACL"):
            nobody.latch("x", 2).count()


@pytest.mark.req("B7", "wrong credentials")
def test_what_others_hide_does_not_keep_the_rest_from_being_listed(
    zookeeper_server: ZooKeeperServer, url: str, base: str
) -> None:
    """One lock of a user with `?acl=private`, or any tree beside ours, made `ls` fail."""
    private = f"zk://alice:s3cret@{HOST}:{zookeeper_server.port}{base}?acl=private"
    hidden = [make_digest_acl("alice", "s3cret", all=True)]
    with (
        kazoo(zookeeper_server.port, auth_data=[("digest", "alice:s3cret")]) as alice,
        holdfast.connect(url) as locks,
        locks.lock("seen"),
        holdfast.connect(private) as theirs,
        theirs.lock("hidden"),
    ):
        alice.ensure_path(f"{base}/partly")
        alice.create(f"{base}/partly/x__lock__", b"", acl=hidden, ephemeral=True, sequence=True)
        assert [lock.name for lock in locks.inspect()] == ["seen"]
        assert sorted(lock.name for lock in theirs.inspect()) == ["hidden", "partly", "seen"]
        for name in ("hidden", "partly"):
            with pytest.raises(Misconfigured, match="ACL"):
                locks.lock(name).locked()


# -- what others have written ----------------------------------------------------------------------


@pytest.mark.req("B5", "R50")
@pytest.mark.parametrize("data", [b"", b"hello", bytes([9]) * HEADER.size + b"another format"])
def test_a_cell_that_is_not_ours(url: str, base: str, client: Any, data: bytes) -> None:
    """`struct.error`, and nothing of where or why."""
    with holdfast.connect(url) as locks:
        commit: Callable[[], Any] = lambda: locks.optimistic("x").commit(0)  # noqa: E731
        assert commit()
        (cell,) = client.get_children(f"{base}/%cells")
        client.set(f"{base}/%cells/{cell}", data)
        for use in (commit, locks.optimistic("x").version):
            with pytest.raises(Misconfigured, match=f"{base}/%cells/{cell} was not written"):
                use()


@pytest.mark.req("R50", "R7")
@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"host":' * 50_000])
def test_a_node_whose_data_is_nested_too_deep(
    url: str, base: str, client: Any, data: bytes
) -> None:
    """Everybody behind it, and `ls`, ended with a RecursionError."""
    name = f"{base}/x/{uuid.uuid4().hex}__lock__"
    client.create(name, data, ephemeral=True, sequence=True, makepath=True)
    with holdfast.connect(url) as locks:
        assert locks.lock("x").acquire(blocking=False) is None
        assert locks.lock("x").acquire(timeout=1.5) is None
        assert len(locks.inspect("x")[0].holders) == 1


# -- servers that have forgotten -------------------------------------------------------------------


@pytest.mark.req("R50", "server restarted without persistence")
def test_a_server_that_has_forgotten_everything_is_used_again_at_once(base: str) -> None:
    """It does not let a client resume that has seen later data than its own: who had nothing there
    was Unavailable for a minute."""
    with (
        ZooKeeperServer() as server,
        holdfast.connect(f"zk://{HOST}:{server.port}{base}", request_timeout=LONG) as locks,
    ):
        for _ in range(20):
            with locks.lock("x"):
                pass
        (before,) = sessions(locks)
        server.restart(wipe=True)
        with locks.lock("x", timeout=LONG):
            assert sessions(locks) != [before]


@pytest.mark.req("R50", "wrong credentials")
def test_a_server_of_another_kind_is_said(base: str) -> None:
    """`could not be reached`, without a reason, or with that of an earlier attempt."""
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                link.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        where = f"zk://{HOST}:{listener.getsockname()[1]}{base}"
        with (
            holdfast.connect(where, request_timeout=2) as locks,
            pytest.raises(Unavailable, match="be no ZooKeeper server"),
        ):
            locks.lock("x").acquire()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LONG)


# -- event loops that stand still ------------------------------------------------------------------


@pytest.mark.req("R2", "R6", "R50", "event loop blocked")
def test_a_blocked_event_loop_does_not_keep_its_lock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's thread went on with its pings, and others waited for as long as it stood still,
    however short the ttl. The same for who is first in line there."""
    monkeypatch.setattr(session, "UNTENDED", 2.5)

    async def main() -> None:
        async with aio.connect(url) as locks:
            lease = await locks.lock("x", ttl=1).acquire()
            assert lease
            waits = asyncio.create_task(locks.lock("x", ttl=1).acquire())
            await asyncio.sleep(0.1)
            with holdfast.connect(url) as others:
                theirs = others.lock("x").acquire(timeout=LONG)  # and the loop stands still
                assert theirs
                assert not lease.held
                theirs.release()
            await lease.release()
            assert await waits

    asyncio.run(main())


@pytest.mark.req("R2", "R6", "R50", "B3")
@pytest.mark.parametrize("closed", [False, True])
def test_an_event_loop_that_is_left_does_not_keep_its_lock(
    url: str, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Not by `asyncio.run`, which ends its tasks: nobody tells them. It was held for ever."""
    monkeypatch.setattr(session, "UNTENDED", 2.5)

    async def main() -> tuple[Any, Any]:
        locks = aio.connect(url)
        return locks, await locks.lock("x", ttl=1).acquire()

    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(main())
    if closed:
        loop.close()
    with holdfast.connect(url) as others, others.lock("x", timeout=LONG):
        assert not kept[1].held
    until(lambda: not wires(), "its thread ends", 12)
    if not closed:
        loop.run_until_complete(kept[0].close())
        loop.close()


@pytest.mark.req("R20", "R50", "renewal thread dies")
def test_a_session_that_nobody_can_look_after_is_not_begun(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of one thread for a moment, all leases were lost after five seconds: for ever, for
    who looks after sessions was never started again."""
    monkeypatch.setattr(session, "UNTENDED", 1.0)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "holdfast-sitter":
            raise RuntimeError("can't start new thread")
        start(thread)

    with holdfast.connect(url) as locks:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises(Unavailable, match="no thread for holdfast-sitter"):
                locks.lock("x", ttl=1).acquire(timeout=1)
        lease = locks.lock("x", ttl=1).acquire(timeout=LONG)
        assert lease
        assert not lease.lost.wait(4)
        assert lease.release()


@pytest.mark.req("R22", "R50")
def test_many_leases_that_run_out_at_once_do_not_look_like_a_blocked_loop(url: str) -> None:
    """Deleting each takes a round trip: the sitter is busy meanwhile, and not gone."""
    with Raw(url) as raw:
        pool = raw.backend._pool
        expire = pool._expire
        tended: list[float] = []

        async def slowly(record: Any, deadline: float) -> bool:
            tended.append(record.session.tended)
            await raw.port.sleep(0.05)
            return await expire(record, deadline)

        pool._expire = slowly
        for n in range(3):
            raw.grant(f"x{n}", ttl=0.5)
        until(lambda: len(tended) >= 3 and not raw.backend._records, "they have run out", LONG)
        assert len(set(tended)) == len(tended)


@pytest.mark.req("R50", "law 3", "ZooKeeper SUSPENDED / LOST")
def test_a_release_is_one_though_another_claim_ends_the_session(
    zookeeper_server: ZooKeeperServer, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost with the release, and before that asks again another acquire finds a
    session that nobody relies on any more: it is ended, and with it goes the node. `release` said
    that the lock had been lost before."""
    monkeypatch.setattr(ending, "LITTLE", 2.0)  # before it asks again
    with (
        FaultProxy((HOST, zookeeper_server.port), framing="zookeeper") as proxy,
        holdfast.connect(f"zk://{HOST}:{proxy.port}{base}", request_timeout=LONG) as locks,
    ):
        lease = locks.lock("x", ttl=20).acquire()
        assert lease
        pool: Any = locks._engine().keeper._backend._pool  # type: ignore[attr-defined]
        (held_in,) = pool._current.values()
        proxy.hold("to_server", matching=lambda frame: frame[8:12] == DELETE_CODE)
        released: list[bool] = []
        taken: list[Any] = []
        releases = threading.Thread(target=lambda: released.append(lease.release()))
        releases.start()
        proxy.wait_for_held()
        proxy.sever()
        until(lambda: held_in.forsaken, "the connection is lost")
        takes = threading.Thread(
            target=lambda: taken.append(locks.lock("y", ttl=20).acquire(timeout=LONG))
        )
        takes.start()
        until(lambda: held_in.condemned, "the session is given up")
        proxy.heal()
        releases.join(LONG)
        takes.join(LONG)
        assert released == [True]
        assert taken[0].release()
        assert locks.inspect() == []


@pytest.mark.req("R50", "law 5", "client paused longer than its lease")
@pytest.mark.parametrize("pause", [0.0, 2.0])
def test_a_release_after_a_pause_is_none_if_the_server_ended_the_session(
    url: str, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """A lease longer than its session, and a process that was stopped: somebody else had the lock,
    and `release`, the first to run again, said True: its delete got no answer; or the session's
    end, which it waited for, was taken for a server that does not answer."""
    monkeypatch.setattr(pool, "LONGEST_SESSION", 1.0)
    monkeypatch.setattr(ending, "LITTLE", pause)  # before it asks again: long after it has ended
    with holdfast.connect(url, request_timeout=LONG) as locks, holdfast.connect(url) as others:
        lease = locks.lock("x", ttl=20).acquire()
        assert lease
        (held_in,) = sessions(locks)
        resumed = threading.Event()
        with stopped(locks, held_in, resumed):
            taken = others.lock("x", ttl=20).acquire(timeout=LONG)
            assert taken
            until(lambda: not lease.held, "nobody vouches for it any more")
            released: list[bool] = []
            releases = threading.Thread(target=lambda: released.append(lease.release()))
            releases.start()
            until(lambda: len(held_in.wire._client._queue) > 0, "it is to be deleted")
            resumed.set()
            releases.join(LONG)
        assert released == [False]
        assert taken.release()


@contextmanager
def stopped(locks: Any, held_in: Any, resumed: threading.Event) -> Iterator[None]:
    """Its connection's thread and its sitter do not run."""
    place, handler = locks._engine().backend._pool, held_in.wire._handler
    select, look = handler.select, place._look

    async def looks_later(now: float) -> float:
        return now + 0.1 if not resumed.is_set() else float(await look(now))

    def selects_later(*arguments: Any) -> Any:
        resumed.wait(LONG)
        return select(*arguments)

    place._look, handler.select = looks_later, selects_later
    try:
        yield
    finally:
        resumed.set()


@pytest.mark.req("R7", "R50", "law 1")
def test_who_waited_for_a_lease_longer_than_its_session_keeps_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dated from a contact that was fresh for so long a lease, and older than its session
    vouches for: nobody makes contacts for who waits. So the session was given up, and the lease
    lost, in the moment in which it was granted."""
    monkeypatch.setattr(pool, "LONGEST_SESSION", 2.0)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        first = there.lock("x", ttl=200).acquire()
        assert first
        taken: list[Any] = []
        takes = threading.Thread(
            target=lambda: taken.append(here.lock("x", ttl=200).acquire(timeout=LONG))
        )
        takes.start()
        until(lambda: sessions(here), "it has a session")
        (waits_in,) = sessions(here)
        until(lambda: now() > waits_in.deadline > 0, "its contact vouches for nothing any more")
        assert first.release()
        takes.join(LONG)
        (lease,) = taken
        assert lease.held
        assert not lease.lost.wait(0.5)
        assert lease.release()
