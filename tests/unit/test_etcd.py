"""The etcd backend without a server: bytes in and out, keys, and what must not be sent."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Misconfigured
from holdfast.backends.common import holders
from holdfast.backends.etcd import answers, hpack, wire
from holdfast.backends.etcd.http2 import NO_ANSWER, Event, Failure, Http2, HttpError
from holdfast.backends.etcd.keys import Keys, described, lineman
from holdfast.types import Claim, Mode

# -- headers --------------------------------------------------------------------------------------


@pytest.mark.req("R60")
@pytest.mark.parametrize(
    ("block", "headers"),
    [
        # RFC 7541, C.6.1: compressed, in part from the static table.
        ("4882 6402", {b":status": b"302"}),
        ("88", {b":status": b"200"}),
        ("20 88", {b":status": b"200"}),
        # C.4.1 has a name from the table; C.2.1 a literal.
        ("418c f1e3 c2e5 f23a 6ba0 ab90 f4ff", {b"": b"www.example.com"}),
        ("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
         {b"custom-key": b"custom-header"}),
    ],
)  # fmt: skip
def test_header_blocks_of_the_standard(block: str, headers: dict[bytes, bytes]) -> None:
    assert hpack.decode(bytes.fromhex(block)) == headers


@pytest.mark.req("R60")
@given(st.lists(st.tuples(st.binary(min_size=1), st.binary(max_size=300)), max_size=8))
def test_headers_come_back(headers: list[tuple[bytes, bytes]]) -> None:
    assert hpack.decode(hpack.encode(headers)) == dict(headers)


@pytest.mark.req("R60")
@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader_of_headers(block: bytes) -> None:
    try:
        hpack.decode(block)
    except ValueError:
        pass


# -- HTTP/2 ---------------------------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        number = int.from_bytes(data[5:9], "big")
        found.append((data[3], data[4], number, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


OK = hpack.encode([(b":status", b"200"), (b"content-type", b"application/grpc")])


def trailers(status: int, text: str = "") -> bytes:
    return hpack.encode([(b"grpc-status", str(status).encode()), (b"grpc-message", text.encode())])


def answered(stream: int, data: bytes) -> bytes:
    return (
        frame(1, 4, stream, OK) + frame(0, 0, stream, message(data))
        + frame(1, 5, stream, trailers(0))
    )  # fmt: skip


def connection() -> Http2:
    http = Http2()
    assert http.out.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    http.out.clear()
    return http


@pytest.mark.req("R60")
@given(st.integers(0, 2**32), st.lists(st.binary(max_size=100), min_size=1, max_size=5))
def test_however_the_bytes_arrive(seed: int, bodies: list[bytes]) -> None:
    """Split anywhere, mixed with what the other side says besides."""
    http = connection()
    numbers = [http.begin(b"", b"question") for _ in bodies]
    http.out.clear()
    data = frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678") + frame(8, 0, 0, b"\0\0\1\0")
    for number, body in zip(numbers, bodies, strict=True):
        data += answered(number, body) + frame(99, 0, 0, b"of the future")
    chance = random.Random(seed)
    events: list[Event] = []
    while data:
        size = chance.randint(1, 30)
        events += http.receive(data[:size])
        data = data[size:]
    expected: list[Event] = []
    for number, body in zip(numbers, bodies, strict=True):
        expected += [Event(number, body), Event(number)]
    assert events == expected
    assert [(kind, flags) for kind, flags, _, _ in frames(bytes(http.out))] == [(4, 1), (6, 1)]
    assert not http.streams


@pytest.mark.req("R60")
def test_a_long_message_waits_for_room() -> None:
    """No more than the other side allows, in frames of the size it allows, and all of it."""
    http = connection()
    long = bytes(range(256)) * 1000
    number = http.begin(b"", long)
    sent = [payload for kind, _, _, payload in frames(bytes(http.out)) if kind == 0]
    assert sum(map(len, sent)) == 65535
    assert max(map(len, sent)) <= 16384
    http.out.clear()
    http.receive(frame(8, 0, number, struct.pack(">I", 1 << 20)))
    assert not http.out  # the connection's own window is still shut
    http.receive(frame(8, 0, 0, struct.pack(">I", 1 << 20)))
    rest = [(flags, payload) for kind, flags, _, payload in frames(bytes(http.out)) if kind == 0]
    assert b"".join(sent) + b"".join(payload for _, payload in rest) == message(long)
    assert [flags for flags, _ in rest][-1] == 1
    assert sum(flags for flags, _ in rest) == 1


@pytest.mark.req("R60", "law 2")
def test_what_failures_mean() -> None:
    http = connection()
    one, two, three, four = (http.begin(b"", b"") for _ in range(4))
    (event,) = http.receive(frame(1, 5, one, trailers(5, "requested lease not found")))
    assert event.failure == Failure(5, "requested lease not found")
    (event,) = http.receive(frame(3, 0, two, struct.pack(">I", 7)))  # refused: never begun
    assert event.failure is not None
    assert event.failure.applied is False
    (event,) = http.receive(frame(3, 0, three, struct.pack(">I", 8)))  # cancelled: who knows
    assert event.failure is not None
    assert event.failure.code == NO_ANSWER
    assert event.failure.applied is None
    (event,) = http.receive(frame(7, 0, 0, struct.pack(">II", three, 0)))  # going away
    assert event.stream == four
    assert event.failure is not None
    assert event.failure.applied is False
    assert http.closing


@pytest.mark.req("R60")
def test_a_call_that_was_given_up_is_not_heard_of() -> None:
    http = connection()
    number = http.begin(b"", b"")
    http.out.clear()
    http.cancel(number)
    http.cancel(number)
    assert [kind for kind, _, _, _ in frames(bytes(http.out))] == [3]
    assert http.receive(answered(number, b"late")) == []


@pytest.mark.req("R60")
def test_a_connection_that_ran_out_of_numbers_takes_no_more_calls() -> None:
    http = connection()
    http._next = (1 << 30) + 1
    number = http.begin(b"", b"")
    assert http.closing
    assert http.receive(answered(number, b"the last")) == [
        Event(number, b"the last"),
        Event(number),
    ]


@pytest.mark.req("R60")
@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100,
        frame(9, 4, 1, b""),  # continues nothing
        frame(1, 4, 1, b"\xff\xff"),
        frame(1, 0, 1, b"") + frame(0, 0, 1, b""),  # headers were to be continued
    ],
)
def test_what_is_not_http2(data: bytes) -> None:
    http = connection()
    http.begin(b"", b"")
    with pytest.raises(HttpError):
        http.receive(data)


@pytest.mark.req("R60")
@given(st.binary(max_size=200))
def test_no_bytes_break_the_connection_otherwise(data: bytes) -> None:
    http = connection()
    http.begin(b"", b"")
    try:
        http.receive(data)
    except HttpError:
        pass


def settings(name: int, value: int) -> bytes:
    return frame(4, 0, 0, struct.pack(">HI", name, value))


@pytest.mark.req("R60")
def test_no_more_calls_at_a_time_than_are_allowed() -> None:
    """The others begin when one has ended, in order; who gives up before that never was."""
    http = connection()
    http.receive(settings(3, 2))
    http.out.clear()
    numbers = [http.begin(b"", b"%d" % n) for n in range(5)]
    begun = [number for kind, _, number, _ in frames(bytes(http.out)) if kind == 1]
    assert begun == numbers[:2]
    http.out.clear()
    http.cancel(numbers[2])
    assert not http.out
    http.receive(answered(numbers[0], b"yes"))
    sent = frames(bytes(http.out))
    assert [(kind, number) for kind, _, number, _ in sent] == [(1, numbers[3]), (0, numbers[3])]
    assert sent[1][3] == message(b"3")
    http.out.clear()
    http.cancel(numbers[1])  # which had begun: the other side is told, and there is room
    kinds = sorted(kind for kind, *_ in frames(bytes(http.out)))
    assert kinds == [0, 1, 3]
    # What never began was surely not done, when the other side goes away.
    late = [http.begin(b"", b"late") for _ in range(2)]
    events = http.receive(frame(7, 0, 0, struct.pack(">II", (1 << 31) - 1, 0)))
    assert {event.stream for event in events} == set(late)
    assert all(event.failure and event.failure.applied is False for event in events)
    http.out.clear()
    http.receive(answered(numbers[3], b"") + answered(numbers[4], b""))
    assert not [kind for kind, *_ in frames(bytes(http.out)) if kind == 1]


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.req("R60")
def test_requests_are_protocol_buffers() -> None:
    """As `protoc` has them: written out by hand, from etcd's rpc.proto."""
    assert wire.get(b"k", b"l", limit=300, order=1, keys_only=True) == bytes.fromhex(
        "0a016b" "12016c" "18ac02" "2801" "3002" "4001"
    )  # fmt: skip
    assert wire.get(b"k", created_before=8) == bytes.fromhex("0a016b6807")
    assert wire.absent(b"k", b"l") == bytes.fromhex("10011a016b28008204016c")
    assert wire.op_put(b"k", b"v", 1) == bytes.fromhex("12080a016b1201761801")
    assert wire.txn([b""], [b"a"], [b"b"]) == bytes.fromhex("0a001201611a0162")
    assert wire.watch_create(1, b"k", b"", 5, puts=False, before=True) == bytes.fromhex(
        "0a0b" "0a016b" "1805" "2800" "3001" "3801"
    )  # fmt: skip
    assert wire.after(b"a/") == b"a0"
    assert wire.after(b"a\xff") == b"b"
    assert wire.after(b"") == b"\0"


@pytest.mark.req("R60")
def test_answers_are_read() -> None:
    kv = bytes.fromhex("0a016b" "1005" "1806" "2001" "2a0176" "3007")  # fmt: skip
    ranged = answers.Ranged.read(b"\x0a\x02\x18\x09\x12" + bytes([len(kv)]) + kv + b"\x20\x01")
    assert ranged.revision == 9
    assert ranged.kvs[0].key == b"k"
    assert (ranged.kvs[0].created, ranged.kvs[0].modified, ranged.kvs[0].lease) == (5, 6, 7)
    gone = answers.LeaseAnswer.read(b"\x10\x05\x18" + b"\xff" * 9 + b"\x01")
    assert (gone.id, gone.ttl) == (5, -1)


# -- keys -----------------------------------------------------------------------------------------


NAMES = st.text(min_size=1).filter(lambda name: name.isprintable() or True)


@pytest.mark.req("names", "law 10")
@given(NAMES, NAMES)
def test_every_name_is_one_line(one: str, two: str) -> None:
    try:
        first, second = (Keys(b"p/", False).line(name) for name in (one, two))
    except UnicodeEncodeError:  # refused long before
        return
    assert (first == second) == (one == two)
    assert one == two or not second.startswith(first)
    assert Keys(b"p/", False).split(first + b"hx-") == (one, b"hx-")


@pytest.mark.req("law 9", "R10", "B5")
def test_what_a_key_says() -> None:
    keys = Keys(b"", False)
    owner = "00112233445566778899aabbccddeeff"
    for mode, permits, limit in (
        (Mode.EXCLUSIVE, 1, 1), (Mode.SHARED, 1, 1), (Mode.PERMITS, 2, 30),
    ):  # fmt: skip
        key, tomb = keys.claim(Claim("x", owner, mode, permits=permits, limit=limit), b"x/")
        one = lineman(key[2:])
        assert (one.mode, one.permits, one.limit) == (mode, permits, limit)
        assert owner not in (key + tomb).decode()
    for foreign in (b"694d7a1b2c3d", b"", b"hx-", b"hp0.3-" + b"0" * 32, b"a/hx-" + b"0" * 32):
        assert lineman(foreign).mode is Mode.EXCLUSIVE
        assert lineman(foreign).id == ""
    assert described(b"somebody else's").info == {}
    with pytest.raises(Misconfigured, match="taken"):
        Keys(b"", True).line("%cell/x")


@pytest.mark.req("R10", "B5")
def test_who_holds() -> None:
    def line(text: str) -> list[bool]:
        modes = {"x": "hx", "s": "hs", "1": "hp1.3", "2": "hp2.3", "?": "foreign"}
        return holders(lineman(f"{modes[one]}-{'0' * 32}".encode()) for one in text)

    for text, count in (
        ("", 0), ("x", 1), ("xx", 1), ("sss", 3), ("ssxs", 2), ("xs", 1), ("?x", 1), ("s?", 1),
        ("111", 3), ("1111", 3), ("12", 2), ("121", 2), ("22", 1), ("221", 1), ("1s1", 1),
        ("s1", 1),
    ):  # fmt: skip
        assert line(text) == [place < count for place in range(len(text))], text
