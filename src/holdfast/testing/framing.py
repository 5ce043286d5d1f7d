"""Cutting a byte stream into requests and replies; partner of `proxy.py`, which acts on them.

A framer is a pure object for one direction of one connection: `feed(bytes)` returns the frames
that are complete and keeps the rest. Laws, for every framer:

1. Nothing is added, changed or reordered: the frames and then `rest()`, joined, are the input.
2. How the bytes arrive does not matter: any splitting gives the same frames ("raw" excepted).
3. A stream that turns out not to be the protocol (TLS, a wrong name) is passed on unframed and
   uncounted from there on: each chunk is an `aside`, and `opaque` is true.

To add a protocol, subclass `Framer`, write `cut`, and add a line to `FRAMINGS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

Way: TypeAlias = Literal["to_server", "to_client"]
Kind: TypeAlias = Literal["begin", "more", "aside"]
Cut: TypeAlias = tuple[int, Kind]  # how many bytes the first frame has, and what it is

# Lambdas, so that the map can stand above the classes it names.
FRAMINGS: dict[str, Callable[[Way], Framer]] = {
    "raw": lambda way: Raw(way),
    "lines": lambda way: Lines(way),
    "resp": lambda way: Resp(way),
    "zookeeper": lambda way: ZooKeeper(way),
    "mysql": lambda way: MySQL(way),
    "postgres": lambda way: Postgres(way),
    "http2": lambda way: Http2(way),
}


class Frame(NamedTuple):
    """The smallest piece that is forwarded, held or lost as a whole.

    `begin` starts a request or reply, `more` continues it, `aside` belongs to none (pushes, pings,
    notices). `stream` tells replies apart where they may overtake each other; elsewhere it is 0
    and the k-th reply answers the k-th request.
    """

    data: bytes
    kind: Kind
    stream: int = 0


class Framer:
    """Buffering, shared by all framers; `cut` is the protocol."""

    def __init__(self, way: Way) -> None:
        self.way: Way = way
        self.opaque = False
        self._buffer = bytearray()
        self._pos = 0  # how far `cut` has understood the buffer: keeps byte-wise feeding linear
        self._stream = 0  # of the frame just cut

    def feed(self, data: bytes) -> list[Frame]:
        """Take the bytes just read; return the frames they complete."""
        self._buffer += data
        frames: list[Frame] = []
        while self._buffer:
            cut: Cut | None = len(self._buffer), "aside"
            try:
                cut = cut if self.opaque else self.cut(self._buffer)
            except ValueError:
                self.opaque, self._stream = True, 0
                continue
            if cut is None:
                break
            size, kind = cut
            frames.append(Frame(bytes(self._buffer[:size]), kind, self._stream))
            del self._buffer[:size]
            self._pos = 0
        return frames

    def rest(self) -> bytes:
        """Give up the incomplete frame: the stream has ended inside it."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def cut(self, buffer: bytearray) -> Cut | None:
        """The first frame of a non-empty buffer; None: incomplete; ValueError: not ours."""
        raise NotImplementedError


class Raw(Framer):
    """Each chunk read is a frame: for protocols nobody has taught us."""

    def cut(self, buffer: bytearray) -> Cut | None:
        return len(buffer), "begin"


class Lines(Framer):
    """Each line, with its newline, is a request or a reply."""

    def cut(self, buffer: bytearray) -> Cut | None:
        end = buffer.find(b"\n", self._pos) + 1
        self._pos = len(buffer)
        return (end, "begin") if end else None


class Resp(Framer):
    """Redis, RESP2 and RESP3: a frame is one whole value, however nested.

    Pushes are asides, and so are RESP2's published messages, which look like replies.
    """

    ASIDES = (b">", b"*3\r\n$7\r\nmessage\r\n", b"*4\r\n$8\r\npmessage\r\n")

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self._need = 1  # values still missing before the frame is complete

    def cut(self, buffer: bytearray) -> Cut | None:
        if self.way == "to_server" and buffer[0] != ord("*"):
            return self._cut_inline(buffer)
        while self._need:
            line_end = buffer.find(b"\r\n", self._pos)
            if line_end < 0:
                return None
            mark, line = buffer[self._pos], buffer[self._pos + 1 : line_end]
            end, need = line_end + 2, self._need - 1
            if mark in b"$=!":  # bulk string, verbatim string, bulk error; -1 is null
                length = int(line)
                end += length + 2 if length >= 0 else 0
                if len(buffer) < end:
                    return None
            elif mark in b"*~>":  # array, set, push
                need += max(int(line), 0)
            elif mark in b"%|":  # map; an attribute also has the value it describes behind it
                need += max(2 * int(line), 0) + (mark == ord("|"))
            elif mark not in b"+-:,#_(":
                raise ValueError(mark)
            self._pos, self._need = end, need
        self._need = 1
        return self._pos, "aside" if buffer.startswith(self.ASIDES) else "begin"

    def _cut_inline(self, buffer: bytearray) -> Cut | None:
        if buffer[0] < ord(" ") and buffer[0] not in b"\r\n\t":
            raise ValueError("TLS, or no Redis client at all")
        end = buffer.find(b"\n", self._pos) + 1
        self._pos = len(buffer)
        if not end:
            return None
        return end, "begin" if buffer[:end].strip() else "aside"  # servers skip empty lines


class ZooKeeper(Framer):
    """4-byte big-endian length. Watch events (xid -1) and pings (xid -2) are asides."""

    LARGEST = 1 << 26  # four-letter words and TLS read as larger lengths than this

    def cut(self, buffer: bytearray) -> Cut | None:
        if len(buffer) < 8:
            return None
        size = int.from_bytes(buffer[:4], "big")
        if not 4 <= size <= self.LARGEST:
            raise ValueError(size)
        if len(buffer) < 4 + size:
            return None
        xid = int.from_bytes(buffer[4:8], "big", signed=True)
        return 4 + size, "aside" if xid in (-1, -2) else "begin"


class MySQL(Framer):
    """3-byte little-endian length and a sequence number; the server speaks first.

    A frame is a packet. A command starts at sequence 0 and its reply at 1; the first packet each
    way starts the login, which counts as one request and one reply.
    """

    TLS = tuple(4 + (minor << 16) + 0x0316 for minor in (1, 2, 3, 4))  # record headers as sizes
    UNANSWERED = b"\x01\x18\x19"  # COM_QUIT, COM_STMT_SEND_LONG_DATA, COM_STMT_CLOSE

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self._last = -1  # the last sequence number; -1: none yet
        self._login = True  # TLS may start behind the first packet, but not later
        self._encrypted = False

    def cut(self, buffer: bytearray) -> Cut | None:
        if len(buffer) < 4:
            return None
        size, first = 4 + int.from_bytes(buffer[:3], "little"), self._last < 0
        # The server does not say that TLS begins, but no login packet is as long as this reads.
        if self._encrypted or (self._login and not first and size in self.TLS):
            raise ValueError("TLS from here on")
        if len(buffer) < size:
            return None
        self._login, last, self._last = first, self._last, buffer[3]
        if first:
            # A client's login cut short behind its capabilities is an SSLRequest.
            self._encrypted = self.way == "to_server" and size == 36 and bool(buffer[5] & 0x08)
            return size, "begin"
        if self.way == "to_client":
            # Numbers wrap after 255: a 1 behind a 0 continues a long reply.
            return size, "begin" if self._last == 1 and last != 0 else "more"
        if self._last or last == 255:
            return size, "more"
        return size, "aside" if size > 4 and buffer[4] in self.UNANSWERED else "begin"


class Postgres(Framer):
    """Type byte and length; start-up packets have no type; ReadyForQuery ends a reply.

    To the server, a frame is everything up to a message that makes the server answer: the parts
    of an extended query travel together. To the client, a frame is one message, because waiting
    for ReadyForQuery would deadlock logins, COPY and Flush; all up to it are one reply.
    """

    UPGRADES = (80877103, 80877104)  # SSLRequest, GSSENCRequest: answered by a single byte
    LONGEST_STARTUP = 10_000  # the server's own limit; TLS reads as more

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self._starting = True
        self._encrypted = False
        self._inside = False  # a request or reply has begun and not ended

    def cut(self, buffer: bytearray) -> Cut | None:
        if self._encrypted:
            raise ValueError("TLS or GSS from here on")
        if self.way == "to_server":
            return self._cut_startup(buffer) if self._starting else self._cut_request(buffer)
        if self._starting and buffer[0] in b"SNG":
            self._encrypted = buffer[0] != ord("N")
            return 1, "begin"
        self._starting = False
        return self._cut_message(buffer)

    def _cut_startup(self, buffer: bytearray) -> Cut | None:
        if len(buffer) < 8:
            return None
        size, code = int.from_bytes(buffer[:4], "big"), int.from_bytes(buffer[4:8], "big")
        if not 8 <= size <= self.LONGEST_STARTUP:
            raise ValueError(size)
        if len(buffer) < size:
            return None
        self._starting = code in self.UPGRADES
        return size, "begin"

    def _message_end(self, buffer: bytearray) -> int | None:
        """Where the message at `_pos` ends, if it is all there."""
        if len(buffer) < self._pos + 5:
            return None
        size = int.from_bytes(buffer[self._pos + 1 : self._pos + 5], "big")
        if size < 4:
            raise ValueError(size)
        end = self._pos + 1 + size
        return end if len(buffer) >= end else None

    def _cut_request(self, buffer: bytearray) -> Cut | None:
        while (end := self._message_end(buffer)) is not None:
            mark, self._pos = buffer[self._pos], end
            if mark in b"PBDEC":  # Parse, Bind, Describe, Execute, Close: not answered yet
                continue
            if mark == ord("X"):
                return end, "aside"
            if mark in b"pdcf":  # passwords and COPY data belong to the request before
                return end, "more"
            inside, self._inside = self._inside, mark == ord("H")  # Flush ends nothing
            return end, "more" if inside else "begin"
        return None

    def _cut_message(self, buffer: bytearray) -> Cut | None:
        end = self._message_end(buffer)
        if end is None:
            return None
        mark, inside = buffer[0], self._inside
        # Notifications come at any time; notices and parameter changes also between replies.
        if mark == ord("A") or (not inside and mark in b"NS"):
            return end, "aside"
        self._inside = mark != ord("Z")
        return end, "more" if inside else "begin"


class Http2(Framer):
    """9-byte header, after the client's preface; HEADERS on a new stream begin a request or reply.

    Hazard: header compression is a conversation. Losing the first reply of a connection also loses
    what later headers refer to, and the client gives up: let one call through before dropping.
    """

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    DATA, HEADERS, RST_STREAM, CONTINUATION = 0, 1, 3, 9

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self._greeted = way == "to_client"
        self._begun: set[int] = set()  # stream numbers are never used twice

    def cut(self, buffer: bytearray) -> Cut | None:
        if not self._greeted:
            return self._cut_preface(buffer)
        size = 9 + int.from_bytes(buffer[:3], "big")
        if len(buffer) < size:
            return None
        what, self._stream = buffer[3], int.from_bytes(buffer[5:9], "big") & 0x7FFFFFFF
        if what not in (self.DATA, self.HEADERS, self.RST_STREAM, self.CONTINUATION):
            return size, "aside"  # settings, pings, flow control
        begun = self._stream in self._begun
        self._begun.add(self._stream)
        return size, "more" if begun else "begin"

    def _cut_preface(self, buffer: bytearray) -> Cut | None:
        if not self.PREFACE.startswith(buffer[: len(self.PREFACE)]):
            raise ValueError("HTTP/1 or TLS")
        self._greeted = len(buffer) >= len(self.PREFACE)
        return (len(self.PREFACE), "aside") if self._greeted else None
