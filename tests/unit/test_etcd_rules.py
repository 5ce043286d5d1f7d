"""The etcd backend without a server: what is sent, and above all what is not.

Over 400 lines: a list of cases, each read by itself, that share an etcd that is played.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time

import pytest
from tests.waiting import PATIENCE

from holdfast import Misconfigured, Unavailable
from holdfast.backends.etcd import EtcdBackend, answers, wire
from holdfast.backends.etcd.channel import PERMISSION_DENIED, Endpoint, Request
from holdfast.backends.etcd.entry import Blocker, Entry
from holdfast.backends.etcd.errand import Errand
from holdfast.backends.etcd.http2 import NO_ANSWER, Failure, Http2
from holdfast.backends.etcd.hub import Watch
from holdfast.backends.etcd.keys import Keys
from holdfast.backends.etcd.loops import LoopTransport
from holdfast.backends.etcd.taking import _watch
from holdfast.backends.etcd.threads import ThreadStream, _Link
from holdfast.backends.url import parse
from holdfast.core.lease import valid_until
from holdfast.ports import clock
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Buried, Claim, Grant, Lost, Mode, Released, Renewed, Unknown

# -- what must not happen --------------------------------------------------------------------------


class Told:
    def lost(self, owner: str, reason: str) -> None: ...

    def certain_until(self, owner: str, moment: float) -> None: ...


@pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
def test_a_claim_withdrawn_before_it_was_sent_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread withdraws it while its session is being granted."""
    backend = EtcdBackend.from_url(parse("etcd://nowhere"))
    port = ThreadPort()
    backend.open(port, Told())
    claim = Claim("x", "0" * 32)
    asked: list[str] = []

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        asked.extend(method for method, _ in requests)
        if requests[0][0] == wire.LEASE_GRANT:
            released = drive(backend.withdraw(claim, True, deadline))
            assert isinstance(released, Released)
        return [b"\x10\x05\x18\x1e"]  # lease 5, for 30 s

    monkeypatch.setattr(backend._channel, "ask", ask)
    answer = drive(backend.attempt(claim, True, port.now() + 5))
    assert isinstance(answer, Buried)
    assert asked == [wire.LEASE_GRANT]


@pytest.mark.req("asyncio cancellation at any await", "B3")
def test_the_end_of_a_loop_ends_who_waits_for_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are cancelled, the connection that is being made and who waits for it; who is told of
    a failure instead of its cancellation would try again for ever."""

    async def never(*_: object) -> Failure:
        await asyncio.sleep(3600)
        raise AssertionError

    async def connecting() -> None:
        """Until there are this task, the one that waits, and the connection that is being made."""
        while len(asyncio.all_tasks()) < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)  # and it has begun

    async def main() -> None:
        transport = LoopTransport(None)
        monkeypatch.setattr(transport, "_connect", never)
        where = Endpoint("nowhere", 1)
        calls = [(b"", b"")]
        waiting = asyncio.create_task(transport.exchange(where, calls, clock.now() + 3600, False))
        await connecting()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(others) == 2
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=PATIENCE)
        assert waiting.cancelled()
        # But closing the client is no cancellation of who waits.
        waiting = asyncio.create_task(transport.exchange(where, calls, clock.now() + 3600, False))
        await connecting()
        await transport.close()
        (answer,) = await asyncio.wait_for(waiting, PATIENCE)
        assert isinstance(answer, Failure)

    asyncio.run(main())


@pytest.mark.req("law 4", "B3")
def test_who_has_more_time_connects_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection is made for all; who began it may have had hardly any time for that."""
    tried: list[float] = []

    async def connect(_: Endpoint, deadline: float) -> Failure:
        tried.append(deadline)
        await asyncio.sleep(0.2 if len(tried) == 1 else 0.01)
        return Failure(NO_ANSWER, "nobody is there", applied=False)

    async def main() -> None:
        transport = LoopTransport(None)
        monkeypatch.setattr(transport, "_connect", connect)
        where, now = Endpoint("nowhere", 1), clock.now()
        results = await asyncio.gather(
            *(transport.exchange(where, [(b"", b"")], now + 0.1 + 30 * n, False) for n in range(5))
        )
        assert all(isinstance(answer, Failure) for (answer,) in results)
        assert len(tried) == 2  # one for the first, one for all others

    asyncio.run(main())


# -- what a review found --------------------------------------------------------------------------


@pytest.mark.req("R9")
def test_how_far_a_watch_has_come() -> None:
    """By the events, not by the header: etcd sends old ones a thousand revisions at a time, and
    says each time which revision the store has."""
    header = b"\x0a\x03\x18\x88\x27"  # 5000
    kv = b"\x0a\x01k" + b"\x18\x07"  # k, modified at 7
    event = b"\x08\x01" + b"\x12" + bytes([len(kv)]) + kv
    answer = answers.WatchAnswer.read(header + b"\x10\x03" + b"\x5a" + bytes([len(event)]) + event)
    assert answer.watch == 3
    assert answer.reached == 7
    assert [kv.key for kv in answer.gone] == [b"k"]
    assert answers.WatchAnswer.read(header).reached == 0


@pytest.mark.req("R9")
def test_a_watch_that_was_refused_and_is_not_named() -> None:
    """etcd says of none of its watches (-1) that the token was refused: all look for themselves,
    also when one has just logged in for that reason."""
    backend, _ = _opened()
    hub = backend._hub
    called: list[object] = []
    watch = Watch(b"k", 5, called.append)
    watch.number = 1
    hub._watches[1] = watch
    reason = b"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
    answer = answers.WatchAnswer.read(
        b"\x10" + b"\xff" * 9 + b"\x01" + b"\x20\x01" + b"\x32" + bytes([len(reason)]) + reason
    )
    for _ in range(2):
        hub._dispatch(answer)
    assert called == [None, None]
    assert hub._suspect


def _opened() -> tuple[EtcdBackend, ThreadPort]:
    backend = EtcdBackend.from_url(parse("etcd://nowhere"))
    port = ThreadPort()
    backend.open(port, Told())
    return backend, port


LEASE = b"\x10\x05\x18\x1e"  # lease 5, for 30 s
NOTHING = b"\x0a\x02\x18\x09" + b"\x1a\x02\x0a\x00" * 4  # revision 9; nothing in any range
TAKEN = b"\x0a\x02\x18\x0a\x10\x01\x1a\x02\x12\x00"  # revision 10; put


@pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
def test_a_claim_withdrawn_before_its_second_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A semaphore that has others is asked twice: another thread withdraws in between."""
    backend, port = _opened()
    claim = Claim("x", "0" * 32, Mode.PERMITS, permits=1, limit=3)
    asked: list[str] = []
    write = backend._book.values.write

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        asked.extend(method for method, _ in requests)
        return [LEASE if method == wire.LEASE_GRANT else NOTHING for method, _ in requests]

    def written(claim: Claim) -> bytes:
        if wire.TXN in asked:  # about to ask again
            drive(backend.withdraw(claim, True, port.now() + 5))
        return write(claim)

    monkeypatch.setattr(backend._channel, "ask", ask)
    monkeypatch.setattr(backend._book.values, "write", written)
    assert isinstance(drive(backend.attempt(claim, False, port.now() + 5)), Buried)
    assert asked == [wire.LEASE_GRANT, wire.TXN, wire.DELETE]
    assert not backend._book.entries


@pytest.mark.req("law 2", "law 3")
def test_a_key_put_on_a_session_that_ended_meanwhile_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By our clock: the store has it still, and it would be in our own way."""
    backend, port = _opened()
    claim = Claim("x", "0" * 32)
    asked: list[str] = []

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        asked.extend(method for method, _ in requests)
        if requests[0][0] == wire.TXN:
            for session in backend._sessions._all.values():
                session.dead = "its time ran out"
        return [LEASE if method == wire.LEASE_GRANT else TAKEN for method, _ in requests]

    monkeypatch.setattr(backend._channel, "ask", ask)
    assert isinstance(drive(backend.attempt(claim, False, port.now() + 5)), Buried)
    assert isinstance(drive(backend.withdraw(claim, True, port.now() + 5)), Released)
    assert asked[-1] == wire.DELETE
    assert not backend._book.entries


@pytest.mark.req("law 3", "law 6")
def test_without_space_a_lock_is_given_back_though_no_tombstone_is_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deleting needs none. What is owed stays owed until the tombstone is there."""
    backend, port = _opened()
    claim = Claim("x", "0" * 32)
    asked: list[str] = []
    full = Failure(8, "etcdserver: mvcc: database space exceeded")
    replies: list[bytes | Failure] = [LEASE, Failure(NO_ANSWER, "silence"), full, b"\x10\x01"]

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        asked.append(requests[0][0])
        return [replies.pop(0) if replies else NOTHING]

    monkeypatch.setattr(backend._channel, "ask", ask)
    assert isinstance(drive(backend.attempt(claim, True, port.now() + 5)), Unknown)
    assert isinstance(drive(backend.withdraw(claim, True, port.now() + 5)), Unknown)
    assert asked == [wire.LEASE_GRANT, wire.TXN, wire.TXN, wire.DELETE]
    assert isinstance(drive(backend.withdraw(claim, True, port.now() + 5)), Released)
    assert asked[4:] == [wire.TXN]


@pytest.mark.req("law 3")
def test_a_put_refused_for_want_of_space_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd may have done it all the same. Who stands in line already keeps its place."""
    backend, port = _opened()
    asked: list[str] = []
    full = Failure(8, "etcdserver: mvcc: database space exceeded")

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        asked.append(requests[0][0])
        answers: dict[str, bytes | Failure] = {wire.LEASE_GRANT: LEASE, wire.DELETE: b"\x10\x01"}
        return [answers.get(method, full) for method, _ in requests]

    monkeypatch.setattr(backend._channel, "ask", ask)
    claim = Claim("x", "0" * 32)
    with pytest.raises(Unavailable, match="space"):
        drive(backend.attempt(claim, True, port.now() + 5))
    assert asked == [wire.LEASE_GRANT, wire.TXN, wire.DELETE]
    assert not backend._book.entries
    entry = backend._book.entry(claim)
    drive(backend._taking._session(entry, port.now() + 5))
    entry.revision = 7
    with pytest.raises(Unavailable, match="space"):
        drive(backend.attempt(claim, True, port.now() + 5))
    assert asked[3:] == [wire.TXN]
    assert entry.revision == 7


@pytest.mark.req("law 1")
def test_validity_is_counted_from_before_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the grant of a session, of its keep-alives, and of the attempt."""
    backend, port = _opened()
    moments: list[float] = []

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        moments.append(port.now())
        time.sleep(0.1)
        no_list = Failure(PERMISSION_DENIED, "of keys", applied=False)
        answers: dict[str, bytes | Failure] = {
            wire.LEASE_GRANT: LEASE,
            wire.KEEP_ALIVE: LEASE,
            wire.TIME_TO_LIVE: no_list,
        }
        return [answers.get(method, TAKEN) for method, _ in requests]

    monkeypatch.setattr(backend._channel, "ask", ask)
    session = drive(backend._sessions.get(30, port.now() + 5))
    assert session.until <= valid_until(moments[-1], 30)
    assert drive(backend._sessions.beat(session, port.now() + 5))
    assert moments[-2] < session.sent <= moments[-1]
    assert session.until <= valid_until(moments[-1], 30)
    grant = drive(backend.attempt(Claim("x", "0" * 32, ttl=20), False, port.now() + 5))
    assert isinstance(grant, Grant)
    assert grant.until <= valid_until(moments[-1], 20)
    until = grant.until
    (renewed,) = drive(backend.renew([grant], port.now() + 5))
    assert isinstance(renewed, Renewed)
    assert until < renewed.until <= valid_until(moments[-1], 20)


@pytest.mark.req("law 3")
def test_a_session_with_a_tombstone_takes_no_new_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it ends when those that it has are done, and the tombstone with it."""
    backend, port = _opened()
    leases = iter((b"\x10\x05\x18\x1e", b"\x10\x06\x18\x1e"))
    unanswered = [Failure(NO_ANSWER, "silence")]

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        if requests[0][0] == wire.LEASE_GRANT:
            return [next(leases)]
        return [unanswered.pop() if unanswered else TAKEN for _ in requests]

    monkeypatch.setattr(backend._channel, "ask", ask)
    first = Claim("x", "0" * 32)
    assert isinstance(drive(backend.attempt(first, False, port.now() + 5)), Unknown)
    assert isinstance(drive(backend.withdraw(first, True, port.now() + 5)), Released)
    second = Claim("x", "1" * 32)
    assert isinstance(drive(backend.attempt(second, False, port.now() + 5)), Grant)
    session = backend._book.entries[second.owner].session
    assert session is not None
    assert session.id == 6


@pytest.mark.req("R10", "B5")
def test_who_waits_for_permits_watches_all_who_have_them() -> None:
    """Any of them may leave first; and a watch begins right after what was seen."""
    claim = Claim("x", "0" * 32, Mode.PERMITS, permits=2, limit=3)
    keys = Keys(b"", False)
    entry = Entry(claim, b"x/", *keys.claim(claim, b"x/"), ThreadPort().event())
    entry.revision = 30
    watch = _watch(entry, Blocker(30, missing=2))
    assert (watch.key, watch.end, watch.since) == (b"x/", b"x0", 31)

    def gone(suffix: str, created: int) -> answers.KeyValue:
        return answers.KeyValue(f"x/{suffix}-{'1' * 32}".encode(), created)

    watch.call([gone("hp1.3", 40), gone("hp1.3", 10)])  # of the two one stands behind us
    assert not entry.event.is_set()
    watch.call([gone("hp1.3", 20)])
    assert entry.event.is_set()
    one = _watch(entry, Blocker(30, b"x/abc"))
    assert (one.key, one.end, one.since) == (b"x/abc", b"", 31)
    one.call([])
    assert entry.event.is_set()


@pytest.mark.req("B3")
def test_a_stream_that_is_told_to_end_while_others_use_it() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = _Link.__new__(_Link)
        link.sock, link.http = ours, Http2()
        stream = ThreadStream(link, b"")
        ended: list[float] = []

        def listen(stream: ThreadStream) -> None:
            drive(stream.receive(clock.now() + 30))
            ended.append(clock.now())

        thread = threading.Thread(target=listen, args=(stream,))
        thread.start()
        time.sleep(0.1)
        begun = clock.now()
        stream._outbox.append(b"what somebody has to say")
        stream.nudge()
        thread.join()
        assert ended[0] - begun < 20
        descriptor = stream._bell.fileno()
        del stream  # as in a forked child, where nobody closes it
        with pytest.raises(OSError):
            os.fstat(descriptor)


@pytest.mark.req("R60", "law 4")
def test_what_only_one_needs_to_do() -> None:
    """If that one is interrupted, or had less time, another does it."""
    port = ThreadPort()
    errand: Errand[str] = Errand(port)
    inside, go_on = threading.Event(), threading.Event()
    results: dict[str, str | None] = {}
    done: list[str] = []

    async def interrupted() -> str:
        inside.set()
        go_on.wait()
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            drive(errand.do(interrupted, lambda _: True, port.now() + 5))

    def other(name: str) -> None:
        async def work() -> str:
            done.append(name)
            return name

        results[name] = drive(errand.do(work, lambda _: True, port.now() + 5))

    threads = [threading.Thread(target=first)]
    threads[0].start()
    inside.wait()
    assert drive(errand.do(interrupted, lambda _: True, port.now() + 0.05)) is None
    threads += [threading.Thread(target=other, args=(name,)) for name in "ab"]
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join()
    assert done
    assert set(results.values()) <= set(done)


@pytest.mark.req("R60", "wrong credentials")
def test_hosts_that_cannot_be_used() -> None:
    for host in ("a..b", "x" * 70):
        with pytest.raises(Misconfigured, match="host"):
            EtcdBackend.from_url(parse(f"etcd://{host}:2379"))


@pytest.mark.req("law 5", "eviction")
def test_a_key_deleted_by_hand_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the list of the session's keys; one look decides, since another member may have made it.
    Also of a claim that is not due: one list serves all."""
    backend, port = _opened()
    told: list[str] = []
    monkeypatch.setattr(
        backend._sessions._signals, "lost", lambda owner, _: told.append(owner), raising=False
    )
    asked: list[str] = []

    async def ask(deadline: float, *requests: Request, **_: bool) -> list[bytes | Failure]:
        asked.extend(method for method, _ in requests)
        answers = {
            wire.LEASE_GRANT: LEASE,
            wire.KEEP_ALIVE: LEASE,
            wire.TIME_TO_LIVE: LEASE,  # and no keys
        }
        if asked[-1] == wire.TXN and wire.TIME_TO_LIVE in asked:
            return [NOTHING]
        return [answers.get(method, TAKEN) for method, _ in requests]

    monkeypatch.setattr(backend._channel, "ask", ask)
    grants = [
        drive(backend.attempt(Claim(name, name * 32), False, port.now() + 5)) for name in "ab"
    ]
    (result,) = drive(backend.renew([grant for grant in grants[:1] if isinstance(grant, Grant)],
                                    port.now() + 5))  # fmt: skip
    assert isinstance(result, Lost)
    assert told == ["b" * 32]
    assert asked[-2:] == [wire.TIME_TO_LIVE, wire.TXN]  # both in one question
    assert not backend._book.entries
