"""zk://: a session's beginning and end, whatever happens in between: nothing of it stays behind.

Over 400 lines: a list of cases, each read by itself, that share one server.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.security import make_digest_acl  # type: ignore[import-untyped]

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.zookeeper import pool, requests
from holdfast.backends.zookeeper.session import Session
from holdfast.backends.zookeeper.wire import Wire
from holdfast.core.lease import valid_until
from holdfast.ports.bare import ThreadEvent
from holdfast.ports.thread import drive
from holdfast.testing import FaultProxy
from holdfast.types import Buried, Busy, Claim, Grant, Released, Renewed, Unknown
from tests.faults.zookeeper import LONG, Raw, kazoo, nodes, sessions, wires
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture
def base() -> str:
    return f"/sessions-{uuid.uuid4().hex}"


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperServer) -> Iterator[FaultProxy]:
    with FaultProxy((HOST, zookeeper_server.port), framing="zookeeper") as proxy:
        yield proxy


@pytest.fixture
def url(proxy: FaultProxy, base: str) -> str:
    return f"zk://{HOST}:{proxy.port}{base}"


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.req("R12", "R50", "server hangs")
def test_close_leaves_no_connection_though_the_server_is_silent(
    proxy: FaultProxy, url: str
) -> None:
    """kazoo's own stop leaves it to the next ping, a third of the session later."""
    before = wires()
    locks = holdfast.connect(url)
    lease = locks.lock("x").acquire()
    assert lease
    assert lease.release()
    proxy.hold("both")
    locks.close()
    until(lambda: not wires() - before, "the connection's thread ends", 12)


@pytest.mark.req("R12", "KeyboardInterrupt")
def test_an_interrupted_close_goes_on_when_it_is_called_again(
    proxy: FaultProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = wires()
    locks = holdfast.connect(url)
    with locks.lock("x"):
        (session,) = sessions(locks)
    proxy.hold("both")

    async def interrupted(_deadline: float | None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ThreadEvent, "wait", lambda event, deadline: (
            interrupted(deadline) if event is session.ended_event else _wait(event, deadline)
        ))  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            locks.close()
    locks.close()
    until(lambda: not wires() - before, "the connection's thread ends", 12)


_wait = ThreadEvent.wait


@pytest.mark.req("KeyboardInterrupt", "R50")
def test_an_interrupt_while_a_session_is_begun(
    proxy: FaultProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread runs already, and nobody knows of it."""
    before = wires()
    start = Wire.start

    def interrupted(wire: Wire) -> None:
        start(wire)
        until(lambda: wire._client._session_id or wire.up, "connecting")
        raise KeyboardInterrupt

    with holdfast.connect(url) as locks:
        with monkeypatch.context() as patched:
            patched.setattr(Wire, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                locks.lock("x").acquire()
        until(lambda: not wires() - before, "the connection's thread ends", 12)
        with locks.lock("x", timeout=LONG):
            pass


@pytest.mark.req("R12", "B3")
def test_a_loop_that_ends_takes_its_sessions_along(
    zookeeper_server: ZooKeeperServer, url: str, base: str
) -> None:
    """Nobody closed the client; and the session's thread knows nothing of loops."""
    before = wires()
    leases: list[Any] = []

    async def main() -> None:
        locks = aio.connect(url)
        leases.append(await locks.lock("x").acquire())
        leases.append(asyncio.create_task(locks.lock("x").acquire()))
        await asyncio.sleep(0.1)

    with kazoo(zookeeper_server.port) as client:
        for _ in range(3):
            asyncio.run(main())
            until(lambda: not wires() - before, "the connection's thread ends", 12)
            assert not leases[0].held
            assert nodes(client, f"{base}/x") == []
            leases.clear()


@pytest.mark.req("R50")
def test_a_session_that_never_was_is_not_ended_over_and_over(proxy: FaultProxy, url: str) -> None:
    """Each time another one was begun, and ended."""
    with holdfast.connect(url, request_timeout=1) as locks:
        proxy.sever()
        with pytest.raises(Unavailable):
            locks.lock("x").acquire()
        (session,) = sessions(locks)
        session.condemn("nobody used it")
        proxy.heal()
        until(lambda: session.over, "the session ends", 12)
        assert session.gone
        assert not proxy.connections
        with locks.lock("x", timeout=LONG):
            pass


@pytest.mark.req("R50", "R21")
def test_what_ends_while_it_is_granted_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire's thread and the one that takes the lock, at the worst moment: the session was found
    usable, and is over before that is acted upon."""
    with Raw(url) as raw:
        grant = raw.grant("x")
        assert not raw.losses
        record = raw.backend._records[grant.claim.owner]
        session = record.session
        record.held = False
        ended: list[bool] = []

        def usable(one: Session) -> bool:
            was = not one.over and not one.condemned
            if was and not ended:
                ended.append(True)
                one.condemn("the server ended the session")
            return was

        monkeypatch.setattr(Session, "usable", property(usable))
        answer = raw.backend._grant(record, raw.port.now())
        assert ended
        assert isinstance(answer, Buried) or raw.losses == [grant.claim.owner]
        monkeypatch.undo()
        until(lambda: session.over, "the session ends")


@pytest.mark.req("R50")
def test_a_session_that_is_only_read_with_is_not_idle(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks and cells have no claim in it; ending it under their feet would make them fail."""
    monkeypatch.setattr(pool, "IDLE", 3.0)
    with Raw(url) as raw:
        assert raw.read("x", LONG) is None
        (session,) = raw.backend._pool._current.values()
        for _ in range(60):
            time.sleep(0.06)
            assert raw.read("x", LONG) is None
        assert session.usable
        until(lambda: session.over, "nobody uses it: it ends")


# -- servers ---------------------------------------------------------------------------------------


@pytest.mark.req("R50", "R7")
def test_a_name_without_an_address_is_not_looked_up_in_a_loop(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def getaddrinfo(*_: Any) -> Any:
        asked.append(time.monotonic())
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with holdfast.connect(f"zk://no-such-host.invalid{base}", request_timeout=1) as locks:
        with pytest.raises(Unavailable, match="no address"):
            locks.lock("x").acquire()
        assert 1 <= len(asked) < 30


@pytest.mark.req("R50", "server hangs")
def test_a_silent_server_is_left_also_by_who_only_looks(
    zookeeper_server: ZooKeeperServer, base: str
) -> None:
    """No claim, so nothing that could run out; but requests, so kazoo does not ping."""
    address = (HOST, zookeeper_server.port)
    with (
        FaultProxy(address, framing="zookeeper") as one,
        FaultProxy(address, framing="zookeeper") as two,
        holdfast.connect(f"zk://{HOST}:{one.port},{HOST}:{two.port}{base}", request_timeout=2)
        as locks,
    ):  # fmt: skip
        assert locks.inspect() == []
        silent, other = (one, two) if one.connections else (two, one)
        silent.hold("both")
        end = time.monotonic() + 25

        def answered() -> bool:
            try:
                return locks.inspect() == []
            except Unavailable:
                return False

        until(answered, "the other server answers", end - time.monotonic())
        assert other.connections


@pytest.mark.req("R50", "R21", "R22")
def test_a_silent_session_does_not_use_up_the_time_of_another(
    zookeeper_server: ZooKeeperServer, base: str
) -> None:
    """Renewed in one batch: on one server nobody answers, on the other the answer is in time."""
    address = (HOST, zookeeper_server.port)
    with (
        FaultProxy(address, framing="zookeeper") as one,
        FaultProxy(address, framing="zookeeper") as two,
        Raw(f"zk://{HOST}:{one.port},{HOST}:{two.port}{base}") as raw,
    ):
        grants: list[tuple[FaultProxy, Grant]] = []
        for step in (20, 25, 30, 35, *range(40, 110, 10), 120, 150, 180, 200, 250, 300, 400):
            before = len(one.connections)
            grant = raw.grant(f"x{step}", float(step))
            grants.append((one if len(one.connections) > before else two, grant))
            if len({id(way) for way, _ in grants}) == 2:  # each session took one at random
                break
        silent = grants[0][0]
        with silent.hold("both"):
            results = drive(raw.backend.renew([grant for _, grant in grants], raw.port.now() + 3))
        for (way, _), result in zip(grants, results, strict=True):
            assert isinstance(result, Unknown if way is silent else Renewed)
        silent.heal()


# -- what a contact is -----------------------------------------------------------------------------


@pytest.mark.req("R21", "law 1", "ZooKeeper follower cut off")
def test_a_list_whose_sync_was_refused_says_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what one server knows: neither a contact nor a proof that a node is not there."""
    with Raw(url) as raw:
        grant = raw.grant("x")
        record = raw.backend._records[grant.claim.owner]
        contact, term = record.session.contact, record.term
        with monkeypatch.context() as patched:
            patched.setattr(requests, "sync", lambda path="/": requests.delete("/no-such-node"))
            (result,) = drive(raw.backend.renew([grant], raw.port.now() + 0.2))
            assert isinstance(result, Unknown)
            again = drive(raw.backend.attempt(grant.claim, True, raw.port.now() + 0.2))
            assert isinstance(again, Unknown)
            path, record.path = record.path, None
            gone = drive(raw.backend.withdraw(grant.claim, False, raw.port.now() + 0.2))
            assert isinstance(gone, Unknown)
        assert record.session.contact == contact
        assert record.term == term
        record.path = path
        drive(raw.backend.withdraw(grant.claim, False, raw.port.now() + LONG))


# -- others' nodes ---------------------------------------------------------------------------------


@pytest.mark.req("R50", "wrong credentials")
def test_a_node_ahead_that_must_not_be_read(
    zookeeper_server: ZooKeeperServer, url: str, base: str
) -> None:
    """The server would not tell us of its end: waiting would be for ever."""
    with (
        kazoo(zookeeper_server.port, auth_data=[("digest", "alice:s3cret")]) as alice,
        holdfast.connect(url) as locks,
    ):
        alice.ensure_path(f"{base}/x")
        theirs = alice.create(
            f"{base}/x/{uuid.uuid4().hex}__lock__",
            b"private",
            acl=[make_digest_acl("alice", "s3cret", all=True)],
            ephemeral=True,
            sequence=True,
        )
        with pytest.raises(Misconfigured, match="hides"):
            locks.lock("x").acquire(timeout=LONG)
        assert nodes(alice, f"{base}/x") == [theirs.rpartition("/")[2]]
        alice.delete(theirs)
        with locks.lock("x", timeout=LONG):
            pass


@pytest.mark.req("R50", "law 3", "ZooKeeper SUSPENDED / LOST")
def test_a_claim_never_has_nodes_in_two_sessions(
    zookeeper_server: ZooKeeperServer, url: str, base: str
) -> None:
    """Its session is over: whoever still wants the lock is somebody new."""
    with Raw(url) as raw, kazoo(zookeeper_server.port) as client:
        grant = raw.grant("x")
        record = raw.backend._records[grant.claim.owner]
        session = record.session
        record.attended += 1  # by who is about to ask again: the sitter does not forget it
        session.condemn("the server ended the session")
        again = drive(raw.backend.attempt(grant.claim, True, raw.port.now() + LONG))
        assert isinstance(again, Buried)
        until(lambda: session.over, "the session ends")
        assert nodes(client, f"{base}/x") == []
        assert isinstance(
            drive(raw.backend.withdraw(grant.claim, True, raw.port.now() + LONG)), Released
        )


@pytest.mark.req("R50", "R1", "ZooKeeper SUSPENDED / LOST")
def test_a_node_of_the_same_name_in_another_session_is_not_ours(
    zookeeper_server: ZooKeeperServer, url: str, base: str
) -> None:
    """A create without an answer is found by its GUID, and by whose session's it is."""
    with Raw(url) as raw, kazoo(zookeeper_server.port) as client:
        grant = raw.grant("x")
        record = raw.backend._records[grant.claim.owner]
        assert record.path is not None
        client.delete(record.path)
        theirs = f"{base}/x/{record.guid}__lock__"
        client.create(theirs, b"", ephemeral=True, sequence=True)
        record.path, record.held = None, False
        again = drive(raw.backend.attempt(grant.claim, True, raw.port.now() + LONG))
        assert isinstance(again, Busy)
        assert len(nodes(client, f"{base}/x")) == 2


@pytest.mark.req("R21", "law 1", "waiter paused, then granted")
def test_a_grant_that_was_waited_for_is_dated_by_a_contact(
    zookeeper_server: ZooKeeperServer, proxy: FaultProxy, url: str, base: str
) -> None:
    """The list that says so is a read: how long the lease is good is said by the last sync before
    it, and when that is old another one goes with the list."""
    with Raw(url) as raw, holdfast.connect(f"zk://{HOST}:{zookeeper_server.port}{base}") as locks:
        for pause, fresh in ((0.0, True), (3.0, False)):
            lease = locks.lock("x").acquire()
            assert lease
            claim = Claim("x", uuid.uuid4().hex, ttl=120.0)  # of which a fiftieth is fresh
            busy = drive(raw.backend.attempt(claim, True, raw.port.now() + LONG))
            assert isinstance(busy, Busy)
            session = raw.backend._records[claim.owner].session
            time.sleep(pause)
            proxy.forget()
            contact = session.contact
            assert lease.release()
            grant = drive(raw.backend.wait(claim, busy, raw.port.now() + LONG))
            assert isinstance(grant, Grant)
            asked = [int.from_bytes(frame[8:12], "big") for frame in proxy.frames("to_server")]
            assert asked == ([8] if fresh else [9, 8])  # sync and list
            dated = grant.until - valid_until(0.0, claim.ttl)
            assert dated == pytest.approx(session.contact, abs=1e-6)
            assert (session.contact == contact) is fresh
            drive(raw.backend.release(grant, False, raw.port.now() + LONG))


@pytest.mark.req("R21", "ZooKeeper SUSPENDED / LOST")
@pytest.mark.parametrize("renew", [True, False])
def test_a_cut_connection_raises_doubt_and_another_ends_it(
    proxy: FaultProxy, url: str, renew: bool
) -> None:
    with holdfast.connect(url) as locks:
        lease = locks.lock("x", ttl=12, renew=renew).acquire()
        assert lease
        with proxy.sever():
            until(lambda: lease.uncertain, "doubt", 9)
            assert not lease.held
        until(lambda: lease.held, "the lease is held again")
        assert not lease.uncertain
        assert lease.release()


@pytest.mark.req("law 3", "reply lost, command applied")
def test_a_create_under_way_is_not_taken_for_none(
    zookeeper_server: ZooKeeperServer, proxy: FaultProxy, url: str, base: str
) -> None:
    """Withdrawn before the answer came: it is not confirmed until the line was looked through."""
    with Raw(url) as raw, kazoo(zookeeper_server.port) as client:
        raw.grant("other")
        claim = Claim("x", uuid.uuid4().hex)
        with proxy.hold("to_client"):
            lost = drive(raw.backend.attempt(claim, True, raw.port.now() + 2))
            assert isinstance(lost, Unknown)
            assert len(nodes(client, f"{base}/x")) == 1
            unsure = drive(raw.backend.withdraw(claim, True, raw.port.now() + 0.2))
            assert isinstance(unsure, Unknown)
        sure = drive(raw.backend.withdraw(claim, True, raw.port.now() + LONG))
        assert isinstance(sure, Released)
        assert nodes(client, f"{base}/x") == []


@pytest.mark.req("R22", "holder killed -9")
def test_what_nobody_renews_ends_though_its_session_lives_on(
    zookeeper_server: ZooKeeperServer, url: str, base: str
) -> None:
    """There is no keeper here, as if it had died: the sitter takes the node away."""
    with Raw(url) as raw, kazoo(zookeeper_server.port) as client:
        raw.grant("kept", ttl=0.5)
        began = time.monotonic()
        raw.grant("x", ttl=0.5)
        until(lambda: not nodes(client, f"{base}/x"), "the node is gone", 12)
        assert time.monotonic() - began > 0.4
        (session,) = raw.backend._pool._current.values()
        assert session.usable
