"""Plain sockets: one connection to a server, and how it is made.

Contract: every call returns by its deadline, or raises `NotSent` or `NoAnswer`; after either the
connection is of no use. Partner: `threads.py`.
Hazards: the kernel's own time limit for a blocking `recv` starts anew after every signal, and a
timer of the user's may send one every few milliseconds. So only the first moment, in which nearly
all answers come, is waited for in `recv` (one system call); after it `poll` keeps the deadline.
The resolver of host names has no time limit.
"""

from __future__ import annotations

import select
import socket
import struct
from typing import Any

from holdfast.backends.addresses import connected
from holdfast.backends.quiet import Socket, milliseconds
from holdfast.backends.redis.wire import (
    HEARING_OUT,
    NOTHING,
    Address,
    NoAnswer,
    NotSent,
    Settings,
    TooLate,
    new_reader,
    show,
    unreachable,
)
from holdfast.ports.clock import now

__all__ = ["TlsWire", "Wire", "connect"]

CHUNK = 65536
FIRST_MOMENT = struct.pack("@ll", 0, 5000)  # a struct timeval: 5 ms


class Wire:
    """One connection, used by one thread at a time."""

    __slots__ = ("_feed", "_gets", "_poll", "_recv", "_send", "run_id", "sock", "used")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        reader = new_reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._recv, self._send = sock.recv, sock.send
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        self._poll = poll.poll
        self.run_id = ""
        self.used = now()

    def exchange(self, data: bytes, deadline: float) -> Any:
        """One request, one reply."""
        self.send(data, deadline)
        return self.reply(deadline)

    def quick(self, data: bytes, deadline: float) -> Any:
        """The same in as few steps as it can be, as long as everything goes well."""
        try:
            sent = self._send(data)
        except OSError as error:  # a full buffer too
            raise NotSent(f"the connection broke: {error}") from None
        if sent < len(data):
            self._send_rest(data[sent:], deadline)
        try:
            self._feed(self._recv(CHUNK))
        except BlockingIOError:  # not in the first moment
            return self.reply(deadline)
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from None
        reply = self._gets()
        return self.reply(deadline) if reply is NOTHING else reply

    def send(self, data: bytes, deadline: float) -> None:
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise NotSent(f"the connection broke: {error}") from None
        if sent < len(data):
            self._send_rest(data[sent:], deadline)

    def _send_rest(self, data: bytes, deadline: float) -> None:
        writable = select.poll()
        writable.register(self.sock.fileno(), select.POLLOUT)
        while data:
            try:
                if not writable.poll(milliseconds(deadline)):
                    raise NoAnswer("the request could not be sent in time")
                data = data[self.sock.send(data) :]
            except OSError as error:
                raise NoAnswer(f"the connection broke: {error}") from None

    def reply(self, deadline: float) -> Any:
        reply = self._gets()
        while reply is NOTHING:
            late = now() >= deadline
            self.receive(deadline)  # what is here is read, late as we may be ourselves
            reply = self._gets()
            if late and reply is NOTHING:  # but not what never ends
                raise TooLate("no answer in time")
        return reply

    def receive(self, deadline: float) -> None:
        if not self._poll(milliseconds(deadline)):
            raise TooLate("no answer in time")
        try:
            chunk = self._recv(CHUNK)
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from None
        if not chunk:
            raise NoAnswer("the server closed the connection")
        self._feed(chunk)

    def hear_out(self, until: float) -> None:
        """Returns if the server has nothing to say by then."""
        try:
            self.receive(until)
        except TooLate:
            pass

    def looks_dead(self) -> bool:
        """Nothing was asked, so there is nothing to read but the end."""
        return bool(self._poll(0))

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        self.close()  # interrupted on its way to the pool, or inherited by a forked child


class TlsWire(Wire):
    """TLS reads ahead, so that `poll` does not tell: its socket blocks, with a time limit."""

    __slots__ = ()
    quick = Wire.exchange

    def send(self, data: bytes, deadline: float) -> None:
        try:
            self.sock.settimeout(max(0.001, deadline - now()))
            self.sock.sendall(data)
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from None

    def receive(self, deadline: float) -> None:
        left = deadline - now()
        if left <= 0:
            raise TooLate("no answer in time")
        try:
            self.sock.settimeout(left)
            chunk = self.sock.recv(CHUNK)
        except TimeoutError:
            raise TooLate("no answer in time") from None
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from error
        if not chunk:
            raise NoAnswer("the server closed the connection")
        self._feed(chunk)


def connect(address: Address, settings: Settings, deadline: float) -> Wire:
    """A connection that has introduced itself. Raises NotSent or Misconfigured."""
    wire: Wire | None = None
    sock: socket.socket | None = None
    replies: list[Any] = []
    settings, where, begun = settings.at(address), show(address), now()
    greeting, count = settings.greeting()
    try:
        sock = _open(address, settings, deadline)
        wire = TlsWire(sock) if settings.tls else Wire(sock)
        if where in settings.curt:
            wire.hear_out(min(deadline, now() + HEARING_OUT))
        wire.send(greeting, deadline)
        while len(replies) < count:
            replies.append(wire.reply(deadline))
        wire.run_id = settings.greeted(address, replies)
        settings.curt.discard(where)
        settings.reasons.reached(where)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError | NoAnswer | NotSent) and len(replies) < count:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise unreachable(cause, where, replies, settings, begun, deadline) from None
        raise
    return wire


def _open(address: Address, settings: Settings, deadline: float) -> socket.socket:
    host, port = address
    left = deadline - now()
    if left <= 0:
        raise TimeoutError("no time was left")
    if not port:
        sock = Socket(socket.AF_UNIX)
        try:
            sock.settimeout(left)
            sock.connect(host)
        except BaseException:
            sock.close()
            raise
    else:
        found = socket.getaddrinfo(host.encode("idna"), port, 0, socket.SOCK_STREAM)
        sock = connected(found, deadline)
    try:
        if port:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if settings.tls is None:
            sock.setblocking(True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, FIRST_MOMENT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, FIRST_MOMENT)
            return sock
        sock.settimeout(max(0.001, deadline - now()))
        return settings.tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
