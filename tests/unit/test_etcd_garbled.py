"""The etcd backend and a server that speaks gRPC and is no etcd, or answers what no etcd says.

Over 400 lines: a list of cases, each read by itself, that share one such server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Unavailable, aio
from holdfast.backends.etcd import EtcdBackend, answers, hpack, wire
from holdfast.backends.etcd.http2 import Http2, HttpError
from holdfast.backends.etcd.hub import Watch
from holdfast.backends.url import parse
from holdfast.core.port import Port
from holdfast.ports.asyncio import AsyncioPort
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Claim, Unknown

PATIENCE = 20.0
PORTS = pytest.mark.parametrize("port", ["sync", "aio"])

HEADER = b"\x0a\x02\x18\x09"  # revision 9
LEASE = HEADER + b"\x10\x05\x18\x1e"  # lease 5, for 30 s
TAKEN = HEADER + b"\x10\x01\x1a\x02\x12\x00" + b"\x1a\x02\x0a\x00" * 2  # put, nobody before
DELETED = HEADER + b"\x10\x01"
SOUND = {
    wire.LEASE_GRANT: LEASE, wire.KEEP_ALIVE: LEASE, wire.TXN: TAKEN, wire.DELETE: DELETED,
    wire.LEASE_REVOKE: HEADER,
}  # fmt: skip


def field(number: int, data: bytes) -> bytes:
    return wire._text(number, data)


def nested(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        data = field(3, field(4, data))
    return data


GARBAGE = {
    "nothing": b"",
    "a web page": b"<html><body>It works!</body></html>",
    "cut off": TAKEN[:-3],
    "cut off in a fixed field": b"\x09\x00",
    "numbers where bytes should be": b"\x08\x01\x18\x01",
    "bytes where numbers should be": field(2, b"x") + field(3, b"x") + field(4, b"x"),
    "a huge number": b"\x10" + b"\xff" * 9 + b"\x7f",
    "an endless number": b"\x10" + b"\xff" * 20,
    "a field 0": b"\x02\x00",
    "a group": b"\x0b\x0c",
    "other operations": HEADER + b"\x10\x01" + field(3, field(3, b"")) * 2,
    "a message in a message in a": nested(3000),
}


class _Call(socketserver.BaseRequestHandler):
    """One connection: every message that comes on a stream is answered by the method's bytes."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Grpc)
        methods: dict[int, str] = {}
        with contextlib.suppress(OSError), self.request.makefile("rb") as read:
            read.read(24)
            self.request.sendall(_frame(4, 0, 0, b""))
            while head := read.read(9):
                size, kind, flags, number = (
                    int.from_bytes(head[:3], "big"),
                    *struct.unpack(">BBI", head[3:]),
                )
                payload = read.read(size)
                if kind == 1:
                    headers = hpack.decode(payload)
                    methods[number] = headers[b":path"].decode()
                elif kind == 0:
                    self.request.sendall(server.answer(methods[number], number, bool(flags & 1)))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


class Grpc(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, said: Callable[[str], bytes]) -> None:
        self.said = said
        super().__init__(("127.0.0.1", 0), _Call)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, number: int, last: bool) -> bytes:
        message = self.said(method)
        framed = struct.pack(">BI", 0, len(message)) + message
        parts = [framed[at : at + 16000] for at in range(0, len(framed), 16000)]
        sent = _frame(1, 4, number, hpack.encode([(b":status", b"200")]))
        sent += b"".join(_frame(0, 0, number, part) for part in parts)
        end = hpack.encode([(b"grpc-status", b"0")])
        return sent + (_frame(1, 5, number, end) if last else b"")


@contextlib.contextmanager
def grpc(said: Callable[[str], bytes]) -> Iterator[Grpc]:
    with Grpc(said) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def both(
    port: str, url: str, work: Callable[[Any], Any], patience: float = PATIENCE
) -> list[Exception | None]:
    """What each of these raises; `work` lists what is to be done with the client."""

    async def main() -> list[Exception | None]:
        async with aio.connect(url, request_timeout=patience) as locks:
            raised: list[Exception | None] = []
            for one in work(locks):
                try:
                    await one()
                    raised.append(None)
                except Exception as error:
                    raised.append(error)
            return raised

    if port == "aio":
        return asyncio.run(main())
    raised: list[Exception | None] = []
    with holdfast.connect(url, request_timeout=patience) as locks:
        for one in work(locks):
            try:
                one()
                raised.append(None)
            except Exception as error:
                raised.append(error)
    return raised


# -- calls ----------------------------------------------------------------------------------------


@PORTS
@pytest.mark.req("R60", "law 2")
@pytest.mark.parametrize("what", [*GARBAGE, "half of it"])
def test_a_server_that_is_no_etcd(port: str, what: str) -> None:
    """It was a `ValueError`, an `IndexError` or a `RecursionError` to who asked. "Half of it":
    leases are granted, and then nothing is as it should be."""
    half = what == "half of it"

    def said(method: str) -> bytes:
        return LEASE if half and method == wire.LEASE_GRANT else GARBAGE.get(what, b"")

    def work(locks: Any) -> list[Callable[[], Any]]:
        return [
            *([lambda: locks.semaphore("x", 3).acquire()] if half else []),
            lambda: locks.lock("x").acquire(),
            lambda: locks.latch("x", 1).count_down(),
        ]

    with grpc(said) as server:  # which is asked again until the time is over
        *acquired, counted = both(port, f"etcd://{server.address}", work, patience=1.0)
        for error in acquired:
            assert isinstance(error, Unavailable), error
            assert f"what answers at {server.address} is no etcd" in str(error)
        assert isinstance(counted, Unavailable), counted  # why, if there was time to the last


@PORTS
@pytest.mark.req("R60", "law 2", "law 3")
@pytest.mark.parametrize("what", [b"", HEADER, b"\x10\x01\x1a\x02\x12\x00"])
def test_an_attempt_with_half_an_answer_is_withdrawn(port: str, what: bytes) -> None:
    """An answer that was cut off between two fields was unknown to who asked, and an answer to the
    book: the withdrawal was confirmed without a word to the store, which may have the key."""
    asked: list[str] = []

    def said(method: str) -> bytes:
        asked.append(method)
        return what if method == wire.TXN else SOUND[method]

    async def give_up(port: Port, address: str) -> None:
        backend = EtcdBackend.from_url(parse(f"etcd://{address}"))
        backend.open(port, Told())
        claim = Claim("x", "a" * 32, ttl=30.0)
        try:
            answer = await backend.attempt(claim, True, port.now() + PATIENCE)
            assert isinstance(answer, Unknown)
            assert asked.count(wire.TXN) == 1
            await backend.withdraw(claim, True, port.now() + PATIENCE)
            assert asked.count(wire.TXN) == 2  # which leaves a tombstone
        finally:
            await backend.close()

    async def main(address: str) -> None:
        await give_up(AsyncioPort(), address)

    with grpc(said) as server:
        if port == "aio":
            asyncio.run(main(server.address))
        else:
            drive(give_up(ThreadPort(), server.address))


@PORTS
@pytest.mark.req("R60")
@pytest.mark.parametrize("what", ["a web page", "numbers where bytes should be", "cut off"])
def test_operators_are_told_that_it_is_no_etcd(port: str, what: str) -> None:
    def work(locks: Any) -> list[Callable[[], Any]]:
        return [locks.inspect, lambda: locks.evict("x")]

    with grpc(lambda _: GARBAGE[what]) as server:
        for error in both(port, f"etcd://{server.address}", work):
            assert isinstance(error, Unavailable), error
            assert f"what answers at {server.address} is no etcd" in str(error)


@PORTS
@pytest.mark.req("R60", "wrong credentials")
@pytest.mark.parametrize("token", [field(2, b"\xff\xfe"), b"\x10\x01", b"\x12\x7f"])
def test_a_token_that_is_none(port: str, token: bytes) -> None:
    def work(locks: Any) -> list[Callable[[], Any]]:
        return [lambda: locks.lock("x").acquire()]

    with grpc(lambda _: token) as server:
        (error,) = both(port, f"etcd://me:secret@{server.address}", work, patience=1.0)
        assert isinstance(error, Unavailable), error
        assert "is no etcd" in str(error)


@PORTS
@pytest.mark.req("R60")
def test_another_endpoint_is_asked(port: str) -> None:
    def work(locks: Any) -> list[Callable[[], Any]]:
        return [lambda: locks.lock("x").acquire(timeout=5)]

    with grpc(lambda _: b"<html>") as stranger, grpc(SOUND.__getitem__) as etcd:
        assert both(port, f"etcd://{stranger.address},{etcd.address}", work) == [None]


@pytest.mark.req("R60", "law 2", "law 5")
def test_a_garbled_keep_alive_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    said = dict(SOUND)
    with (
        grpc(lambda method: said[method]) as server,
        holdfast.connect(f"etcd://{server.address}", request_timeout=PATIENCE) as locks,
    ):
        lease = locks.lock("x", ttl=20).acquire()
        assert lease is not None
        said[wire.KEEP_ALIVE] = b"\x10"
        said[wire.TIME_TO_LIVE] = field(5, b"")  # a lease without its number
        with pytest.raises(Unavailable, match="is no etcd"):
            lease.renew()
        assert lease.held
        said[wire.KEEP_ALIVE] = LEASE
        said[wire.TIME_TO_LIVE] = LEASE + field(5, _key_of(locks))
        assert lease.renew() > 0
        assert lease.release()
    assert not [record for record in caplog.records if record.exc_info]


def _key_of(locks: Any) -> bytes:
    (entry,) = locks._engine().backend._book.entries.values()
    key: bytes = entry.key
    return key


# -- watching -------------------------------------------------------------------------------------


class Told:
    def lost(self, owner: str, reason: str) -> None: ...

    def certain_until(self, owner: str, moment: float) -> None: ...


@PORTS
@pytest.mark.req("R9", "R60")
@pytest.mark.parametrize("garbage", [b"\xff", b"\x10", field(11, b"\x10\x01"), field(2, b"x")])
def test_a_garbled_watch_is_begun_again(
    port: str, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits looks for itself, and hears of what comes after; no traceback is logged."""
    key = b"k"
    event = field(11, b"\x08\x01" + field(2, field(1, key) + b"\x18\x0c"))  # deleted at 12
    replies = [garbage]

    def said(method: str) -> bytes:
        assert method == wire.WATCH
        return replies.pop() if replies else HEADER + b"\x10\x01" + event

    async def watch(port: Port, address: str) -> list[object]:
        backend = EtcdBackend.from_url(parse(f"etcd://{address}"))
        backend.open(port, Told())
        called: list[object] = []
        told = port.event()

        def call(gone: list[answers.KeyValue] | None) -> None:
            called.append(gone and [kv.key for kv in gone])
            if gone:
                told.set()

        watch = Watch(key, 5, call)
        backend._hub.add(watch)
        try:
            assert await told.wait(port.now() + PATIENCE)
        finally:
            backend._hub.remove(watch)
            await backend.close()
        return called

    async def main(address: str) -> list[object]:
        return await watch(AsyncioPort(), address)

    with caplog.at_level(logging.WARNING, "holdfast"), grpc(said) as server:
        if port == "aio":
            called = asyncio.run(main(server.address))
        else:
            called = drive(watch(ThreadPort(), server.address))
    assert called == [None, [key]]
    assert [record.exc_info for record in caplog.records] == [None]


# -- the readers ----------------------------------------------------------------------------------

READERS: list[Callable[[bytes], object]] = [
    answers.TxnAnswer.read, answers.WatchAnswer.read, answers.LeaseAnswer.read, answers.Ranged.read,
    answers.Deleted.read, answers.KeyValue.read, answers.token_of,
]  # fmt: skip

_numbers = st.builds(
    lambda number, value: wire._varint(number << 3) + wire._varint(value),
    st.integers(1, 12), st.integers(0, 1 << 70),
)  # fmt: skip
_messages = st.recursive(
    st.binary(max_size=20),
    lambda inner: st.lists(
        st.one_of(_numbers, st.builds(field, st.integers(1, 12), inner)), max_size=6
    ).map(b"".join),
    max_leaves=12,
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """What looks much like a message: cut, or with a byte changed."""
    data = bytearray(draw(_messages))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@pytest.mark.req("R60")
@given(st.one_of(st.binary(max_size=80), _damaged()))
def test_any_bytes_are_a_message_or_one_error(data: bytes) -> None:
    for read in READERS:
        try:
            read(data)
        except answers.Garbled:
            pass


@pytest.mark.req("R60")
@given(
    st.lists(
        st.builds(
            _frame, st.integers(0, 10), st.integers(0, 255), st.integers(0, 5),
            st.one_of(st.binary(max_size=40), _messages),
        )
    )
)  # fmt: skip
def test_any_frames_are_events_or_one_error(frames: list[bytes]) -> None:
    http = Http2()
    for _ in range(2):
        http.begin(b"", b"question")
    try:
        http.receive(b"".join(frames))
    except HttpError:
        pass


@pytest.mark.req("R60")
def test_a_status_below_all_codes_is_none_of_ours() -> None:
    """It was taken for a certificate that somebody does not trust."""
    http = Http2()
    number = http.begin(b"", b"question")
    with pytest.raises(HttpError):
        http.receive(_frame(1, 5, number, hpack.encode([(b"grpc-status", b"-2")])))


@pytest.mark.req("R60")
def test_numbers_of_64_bits_and_no_more() -> None:
    most = b"\x10" + b"\xff" * 9 + b"\x01"
    assert answers.Deleted.read(most).count == (1 << 64) - 1
    with pytest.raises(answers.Garbled):
        answers.Deleted.read(most[:-1] + b"\x02")
