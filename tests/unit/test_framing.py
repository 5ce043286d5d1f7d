"""Framing: whole conversations, cut anywhere, give the same frames; nothing is added or lost."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.testing.framing import FRAMINGS, Frame, Kind, Way

WAYS: tuple[Way, Way] = ("to_server", "to_client")


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(bulk(word) for word in words)


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


def zk(xid: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), xid) + body


def my(sequence: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([sequence]) + body


def pg(mark: str, body: bytes = b"") -> bytes:
    return mark.encode() + struct.pack(">i", 4 + len(body)) + body


def h2(what: int, stream: int, body: bytes = b"", flags: int = 0) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([what, flags]) + struct.pack(">i", stream) + body


SSL_REQUEST = struct.pack(">ii", 8, 80877103)
STARTUP = struct.pack(">ii", 19, 196608) + b"user\0bob\0\0\0"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

CONVERSATIONS: dict[tuple[str, Way], list[tuple[bytes, Kind]]] = {
    ("lines", "to_server"): [(b"a\n", "begin"), (b"\n", "begin"), (b"bc\r\n", "begin")],
    ("resp", "to_server"): [
        (command(b"SET", b"k", b"\r\n*1\r\n"), "begin"),
        (b"PING\r\n", "begin"),
        (b"\r\n", "aside"),
        (command(), "begin"),
    ],
    ("resp", "to_client"): [
        (b"+OK\r\n", "begin"),
        (b"$-1\r\n", "begin"),
        (b"*-1\r\n", "begin"),
        (b"*2\r\n*1\r\n:1\r\n$5\r\na\r\nbc\r\n", "begin"),
        (b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n", "aside"),
        (b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", "aside"),
        (b"%1\r\n+k\r\n~2\r\n#t\r\n,1.5\r\n", "begin"),
        (b"|1\r\n+ttl\r\n:3\r\n=7\r\ntxt:abc\r\n", "begin"),
        (b"*0\r\n", "begin"),
        (b"_\r\n", "begin"),
    ],
    ("zookeeper", "to_server"): [(zk(0, b"login"), "begin"), (zk(-2), "aside"), (zk(1), "begin")],
    ("zookeeper", "to_client"): [(zk(0, b"session"), "begin"), (zk(-1, b"event"), "aside")],
    ("mysql", "to_server"): [
        (my(1, b"login"), "begin"),
        (my(3, b"auth switch"), "more"),
        (my(0, b"\x03select 1"), "begin"),
        *((my(n % 256, b"load data local"), "more") for n in range(1, 257)),
        (my(0, b"\x19stmt close"), "aside"),
        (my(0, b"\x03" + b"x" * (0x0316 - 1)), "begin"),
        (my(0, b"\x01"), "aside"),
    ],
    ("mysql", "to_client"): [
        (my(0, b"greeting"), "begin"),
        (my(2, b"ok"), "more"),
        (my(1, b"columns"), "begin"),
        *((my(n % 256, b"row"), "more") for n in range(2, 259)),
        (my(1, b""), "begin"),
    ],
    ("postgres", "to_server"): [
        (SSL_REQUEST, "begin"),
        (STARTUP, "begin"),
        (pg("p", b"password"), "more"),
        (pg("Q", b"begin\0"), "begin"),
        (pg("P", b"sql") + pg("B") + pg("D") + pg("E") + pg("S"), "begin"),
        (pg("P") + pg("B") + pg("E") + pg("H"), "begin"),
        (pg("B") + pg("E") + pg("S"), "more"),
        (pg("X"), "aside"),
    ],
    ("postgres", "to_client"): [
        (b"N", "begin"),
        (pg("R", b"ask"), "begin"),
        (pg("R", b"ok"), "more"),
        (pg("S", b"TimeZone"), "more"),
        (pg("Z", b"I"), "more"),
        (pg("A", b"notify"), "aside"),
        (pg("S", b"TimeZone"), "aside"),
        (pg("T"), "begin"),
        (pg("A", b"notify"), "aside"),
        (pg("Z", b"I"), "more"),
        (pg("E"), "begin"),
    ],
    ("http2", "to_server"): [
        (PREFACE, "aside"),
        (h2(4, 0, b"settings"), "aside"),
        (h2(1, 1, b"post", 4), "begin"),
        (h2(1, 3, b"post", 4), "begin"),
        (h2(0, 1, b"body", 1), "more"),
        (h2(8, 1, b"\0\0\0\1"), "aside"),
    ],
    ("http2", "to_client"): [
        (h2(1, 3, b"200", 4), "begin"),
        (h2(1, 1, b"200", 4), "begin"),
        (h2(6, 0, b"pingpong"), "aside"),
        (h2(0, 3, b""), "more"),
        (h2(1, 3, b"trailers", 5), "more"),
    ],
}


def fed(name: str, way: Way, chunks: list[bytes]) -> tuple[list[Frame], bytes]:
    framer = FRAMINGS[name](way)
    return [frame for chunk in chunks for frame in framer.feed(chunk)], framer.rest()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    points = [0, *sorted(point % (len(data) + 1) for point in at), len(data)]
    return [data[a:b] for a, b in pairwise(points)]


points = st.lists(st.integers(0, 1 << 16), max_size=30)
quick = settings(deadline=None, max_examples=25, database=None)


@pytest.mark.parametrize(("name", "way"), CONVERSATIONS)
@given(points)
@quick
def test_frames_do_not_depend_on_how_bytes_arrive(name: str, way: Way, at: list[int]) -> None:
    expected = CONVERSATIONS[name, way]
    data = b"".join(frame for frame, _ in expected)
    frames, rest = fed(name, way, cut(data, at))
    assert [(frame.data, frame.kind) for frame in frames] == expected
    assert rest == b""


@pytest.mark.parametrize(("name", "way"), CONVERSATIONS)
def test_frames_byte_by_byte(name: str, way: Way) -> None:
    expected = CONVERSATIONS[name, way]
    data = b"".join(frame for frame, _ in expected)
    frames, _ = fed(name, way, [bytes([byte]) for byte in data])
    assert [(frame.data, frame.kind) for frame in frames] == expected


values = st.recursive(
    st.one_of(
        st.integers().map(lambda n: b":%d\r\n" % n),
        st.binary(max_size=20).map(bulk),
        st.sampled_from([b"+OK\r\n", b"-ERR no\r\n", b"$-1\r\n", b"#t\r\n", b"_\r\n", b"(12\r\n"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda v: b"*%d\r\n" % len(v) + b"".join(v)),
        st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda v: b"%%%d\r\n" % len(v) + b"".join(a + b for a, b in v)
        ),
    ),
)


@given(st.lists(values, max_size=8), points)
@quick
def test_any_resp_value_is_one_frame(replies: list[bytes], at: list[int]) -> None:
    frames, rest = fed("resp", "to_client", cut(b"".join(replies), at))
    assert ([frame.data for frame in frames], rest) == (replies, b"")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMINGS)
@given(data=st.binary(max_size=200), valid=st.booleans(), at=points)
@quick
def test_nothing_is_added_or_lost_whatever_the_bytes(
    name: str, way: Way, data: bytes, valid: bool, at: list[int]
) -> None:
    if valid:
        data = b"".join(frame for frame, _ in CONVERSATIONS.get((name, way), [])) + data
    whole, whole_rest = fed(name, way, [data])
    frames, rest = fed(name, way, cut(data, at))
    assert b"".join(frame.data for frame in frames) + rest == data
    assert b"".join(frame.data for frame in whole) + whole_rest == data
    if name != "raw":
        counted = [frame for frame in frames if frame.kind != "aside"]
        assert counted == [frame for frame in whole if frame.kind != "aside"]


TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.mark.parametrize(
    ("name", "way", "before"),
    [
        ("resp", "to_server", b""),
        ("resp", "to_client", b""),
        ("zookeeper", "to_server", b""),
        ("http2", "to_server", b""),
        ("mysql", "to_server", my(1, b"\0\x08" + bytes(30))),
        ("mysql", "to_client", my(0, b"greeting")),
        ("postgres", "to_server", SSL_REQUEST),
        ("postgres", "to_client", b"S"),
    ],
)
def test_tls_is_passed_on_unframed(name: str, way: Way, before: bytes) -> None:
    framer = FRAMINGS[name](way)
    assert [frame.data for frame in framer.feed(before)] == ([before] if before else [])
    # "resp" needs a line, as its replies do not say how long they are before that.
    ends_line = b"\r\n" if name == "resp" else b""
    assert framer.feed(TLS + ends_line) == [Frame(TLS + ends_line, "aside")]
    assert framer.opaque
    assert framer.feed(b"x") == [Frame(b"x", "aside")]
