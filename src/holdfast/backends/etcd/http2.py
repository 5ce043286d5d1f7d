"""gRPC over HTTP/2 for a client (RFC 9113), without I/O: bytes in, events out, and bytes to send.

Contract: one object is one connection. `begin` starts a call; whatever is to be sent gathers in
`out`, which the owner of the socket sends and clears; `receive` takes what was read and returns
what became of the calls. A call that the other side does not allow yet (it says how many there may
be at a time) begins when another has ended. Nothing here waits, and nothing is decided:
`threads.py` and `loops.py` move the bytes, `channel.py` decides what a failure means.

Why not grpcio: in a forked child of a process that uses grpc.aio, calls hang (grpcio 1.85, seen in
a run); a call takes twice the processor time; and generated code binds to a version of protobuf.
What a client of etcd needs of HTTP/2 is this page.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.backends.etcd import hpack

__all__ = [
    "NO_ANSWER",
    "NO_TRUST",
    "Event",
    "Failure",
    "Http2",
    "HttpError",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
CANCEL, REFUSED_STREAM = 8, 7

WINDOW = 0x7FFFFFFF
REFILL = 1 << 28  # after so many bytes the other side is told that it may send as many again
LARGEST = 1 << 26  # no answer of etcd is larger: 64 MiB
LARGEST_FRAME = 16384  # we did not allow more
LARGEST_BLOCK = 1 << 20  # of headers
LAST_STREAM = 1 << 30

_head = struct.Struct(">IBI")  # length and kind, flags, stream
_u32 = struct.Struct(">I")
_setting = struct.Struct(">HI")
_message = struct.Struct(">BI")


class HttpError(Exception):
    """The connection cannot be used any further."""


@dataclass(slots=True, frozen=True)
class Failure:
    """A call without an answer, or with a refusal for one."""

    code: int  # of gRPC; NO_ANSWER: none came
    text: str
    applied: bool | None = None
    """False: the store surely did nothing. None: nobody knows."""


class Event(NamedTuple):
    """What came on a stream: a message, or (with neither) its good end, or its failure."""

    stream: int
    message: bytes | None = None
    failure: Failure | None = None


NO_ANSWER, NO_TRUST = -1, -2
"""Codes beside gRPC's: nobody answered; one of the two sides does not accept the certificate."""


@dataclass(slots=True, eq=False)
class _Stream:
    window: int
    opening: bytes | None = None  # the headers of a call that is still to begin
    buffer: bytearray = field(default_factory=bytearray)
    taken: int = 0
    unsent: deque[tuple[bytes, bool]] = field(default_factory=deque[tuple[bytes, bool]])


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _head.pack(len(payload) << 8 | kind, flags, stream) + payload


def _framed(message: bytes) -> bytes:
    """A message as gRPC wraps it."""
    return _message.pack(0, len(message)) + message


class Http2:
    def __init__(self) -> None:
        self.out = bytearray(PREFACE)
        self.out += _frame(
            SETTINGS,
            0,
            0,
            _setting.pack(HEADER_TABLE_SIZE, 0)
            + _setting.pack(ENABLE_PUSH, 0)
            + _setting.pack(INITIAL_WINDOW_SIZE, WINDOW),
        )
        self.out += _frame(WINDOW_UPDATE, 0, 0, _u32.pack(WINDOW - 65535))
        self.closing = False  # the other side wants no more calls here
        self.streams: dict[int, _Stream] = {}
        self._in = bytearray()
        self._next = 1
        self._window: int = 65535  # what we may send in all
        self._initial: int = 65535  # and on a new stream
        self._frame_size = 16384
        self._most: int = 1 << 31  # calls at a time
        self._later: deque[int] = deque()  # calls that are still to begin, in order
        self._taken = 0
        self._block: tuple[int, int, bytearray] | None = None  # headers still to be continued

    # -- what we say ------------------------------------------------------------------------------

    def begin(self, headers: bytes, message: bytes | None) -> int:
        """Start a call with this header block and, if there is one, its only message."""
        number = self._next
        self._next += 2
        if number > LAST_STREAM:  # numbers are never used twice: the next call gets a new one
            self.closing = True
        stream = self.streams[number] = _Stream(self._initial)
        if len(self.streams) > self._most:
            stream.opening = headers
            self._later.append(number)
        else:
            self.out += _frame(HEADERS, END_HEADERS, number, headers)
        if message is not None:
            self._data(number, stream, _framed(message), True)
        return number

    def _begin_others(self) -> None:
        """Calls that had to wait, now that there is room."""
        while self._later and len(self.streams) - len(self._later) < self._most:
            number = self._later.popleft()
            stream = self.streams[number]
            assert stream.opening is not None
            self.out += _frame(HEADERS, END_HEADERS, number, stream.opening)
            stream.opening = None
            self._flush(number, stream)

    def _forget(self, number: int) -> _Stream | None:
        stream = self.streams.pop(number, None)
        if stream is not None and stream.opening is not None:
            self._later.remove(number)
        if self._later:
            self._begin_others()
        return stream

    def send(self, number: int, message: bytes) -> None:
        """One more message on a stream that was begun without any."""
        stream = self.streams.get(number)
        if stream is not None:
            self._data(number, stream, _framed(message), False)

    def cancel(self, number: int) -> None:
        stream = self._forget(number)
        if stream is not None and stream.opening is None:
            self.out += _frame(RST_STREAM, 0, number, _u32.pack(CANCEL))

    def ping(self) -> None:
        self.out += _frame(PING, 0, 0, b"holdfast")

    def _data(self, number: int, stream: _Stream, data: bytes, last: bool) -> None:
        if stream.unsent or stream.opening is not None:
            stream.unsent.append((data, last))
            return
        size = len(data)
        if size <= self._window and size <= stream.window and size <= self._frame_size:
            self._window -= size
            stream.window -= size
            self.out += _frame(DATA, END_STREAM if last else 0, number, data)
        else:
            stream.unsent.append((data, last))
            self._flush(number, stream)

    def _flush(self, number: int, stream: _Stream) -> None:
        """As much as the windows allow."""
        while stream.unsent and stream.opening is None:
            data, last = stream.unsent[0]
            size = min(len(data), self._window, stream.window, self._frame_size)
            if size <= 0:
                return
            self._window -= size
            stream.window -= size
            whole = size == len(data)
            self.out += _frame(DATA, END_STREAM if whole and last else 0, number, data[:size])
            if whole:
                stream.unsent.popleft()
            else:
                stream.unsent[0] = data[size:], last

    # -- what we hear -----------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What the bytes just read bring about."""
        buffer = self._in
        buffer += data
        events: list[Event] = []
        at, end = 0, len(buffer)
        try:
            while end - at >= 9:
                size = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
                if size > LARGEST_FRAME:
                    raise HttpError("what answers there does not speak HTTP/2")
                if end - at < 9 + size:
                    break
                kind, flags = buffer[at + 3], buffer[at + 4]
                number = _u32.unpack_from(buffer, at + 5)[0] & WINDOW
                payload = bytes(buffer[at + 9 : at + 9 + size])
                at += 9 + size
                if self._block is not None and kind != CONTINUATION:
                    raise HttpError("headers were not continued")
                self._on_frame(kind, flags, number, payload, events)
        except (IndexError, ValueError, struct.error) as error:
            raise HttpError(f"broken HTTP/2 from the other side: {error}") from None
        del buffer[:at]
        return events

    def _on_frame(
        self, kind: int, flags: int, number: int, payload: bytes, events: list[Event]
    ) -> None:
        if kind == DATA:
            self._on_data(flags, number, payload, events)
        elif kind == HEADERS:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & PRIORITY:
                payload = payload[5:]
            if flags & END_HEADERS:
                self._on_headers(number, flags, payload, events)
            else:
                self._block = number, flags, bytearray(payload)
        elif kind == CONTINUATION:
            if self._block is None or self._block[0] != number:
                raise HttpError("a continuation of nothing")
            self._block[2].extend(payload)
            if len(self._block[2]) > LARGEST_BLOCK:
                raise HttpError("headers without an end")
            if flags & END_HEADERS:
                _, first, block = self._block
                self._block = None
                self._on_headers(number, first, bytes(block), events)
        elif kind == WINDOW_UPDATE:
            more: int = _u32.unpack(payload)[0] & WINDOW
            self._on_window(number, more)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._on_settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self.out += _frame(PING, ACK, 0, payload)
        elif kind == RST_STREAM:
            reason = _u32.unpack(payload)[0]
            applied = False if reason == REFUSED_STREAM else None
            failure = Failure(NO_ANSWER, f"the call was reset (HTTP/2 error {reason})", applied)
            self._end(number, failure, events)
        elif kind == GOAWAY:
            self._on_goaway(payload, events)

    def _on_data(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        if flags & PADDED:
            payload = payload[1 : size - payload[0]]
        self._taken += size
        if self._taken >= REFILL:
            self.out += _frame(WINDOW_UPDATE, 0, 0, _u32.pack(self._taken))
            self._taken = 0
        stream = self.streams.get(number)
        if stream is None:  # we gave it up
            return
        stream.taken += size
        if stream.taken >= REFILL:
            self.out += _frame(WINDOW_UPDATE, 0, number, _u32.pack(stream.taken))
            stream.taken = 0
        buffer = stream.buffer
        buffer += payload
        while len(buffer) >= 5:
            compressed, length = _message.unpack_from(buffer)
            if compressed or length > LARGEST:
                raise HttpError("a message that we cannot read")
            if len(buffer) < 5 + length:
                break
            events.append(Event(number, bytes(buffer[5 : 5 + length])))
            del buffer[: 5 + length]
        if flags & END_STREAM:
            self._end(number, Failure(NO_ANSWER, "the answer has no status"), events)

    def _on_headers(self, number: int, flags: int, block: bytes, events: list[Event]) -> None:
        headers = hpack.decode(block)
        if not flags & END_STREAM or number not in self.streams:
            return
        status = headers.get(b"grpc-status")
        if status == b"0":
            self._end(number, None, events)
        elif status is None:
            http = headers.get(b":status", b"?").decode("ascii", "replace")
            self._end(number, Failure(NO_ANSWER, f"no gRPC server: HTTP status {http}"), events)
        elif not status.isdigit():  # below 0 are codes of our own
            raise HttpError("a status that is no number")
        else:
            text = headers.get(b"grpc-message", b"").decode("utf-8", "replace")
            self._end(number, Failure(int(status), text), events)

    def _on_window(self, number: int, more: int) -> None:
        if number == 0:
            self._window += more
            for other, stream in self.streams.items():
                if stream.unsent:
                    self._flush(other, stream)
        elif number in self.streams:
            stream = self.streams[number]
            stream.window += more
            self._flush(number, stream)

    def _on_settings(self, payload: bytes) -> None:
        value: int
        for name, value in _setting.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                more = value - self._initial
                self._initial = value
                for number, stream in self.streams.items():
                    stream.window += more
                    self._flush(number, stream)
            elif name == MAX_FRAME_SIZE:
                self._frame_size = value
            elif name == MAX_CONCURRENT:
                self._most = value
                self._begin_others()
        self.out += _frame(SETTINGS, ACK, 0, b"")

    def _on_goaway(self, payload: bytes, events: list[Event]) -> None:
        self.closing = True
        last = _u32.unpack_from(payload)[0] & WINDOW
        for number in sorted(self.streams, reverse=True):  # so none of the later ones begins
            if number > last or self.streams[number].opening is not None:
                self._end(number, Failure(NO_ANSWER, "the server is going away", False), events)

    def _end(self, number: int, failure: Failure | None, events: list[Event]) -> None:
        if self._forget(number) is not None:
            events.append(Event(number, None, failure))
