"""The blocking transport: a pool of plain sockets, each used by one thread at a time.

Contract: `transport.py`. Nothing here suspends. Taking a connection is one atomic `deque.pop`, and
so is giving it back: no lock to be interrupted under. An exchange that did not come to its end
closes its socket.
Hazard: the kernel's own time limit for a blocking `recv` starts anew after every signal, and a
timer of the user's may send one every few milliseconds. So only the first moment, in which nearly
all answers come, is waited for in `recv` (one system call); after it `poll` keeps the deadline.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from typing import Any, cast

from holdfast.backends.redis.transport import Hearing, Node
from holdfast.backends.redis.wire import (
    NOTHING,
    Address,
    NoAnswer,
    NotSent,
    Settings,
    new_reader,
    pack,
)
from holdfast.ports.clock import now

__all__ = ["ThreadTransport"]

IDLE = 1.0
"""After so many seconds a pooled connection is looked at before it is used: it may be dead."""

MOST_IDLE = 32
"""So many connections to a server are kept for later."""

CHUNK = 65536
DAY = 86400_000.0  # milliseconds
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
                if not writable.poll(_milliseconds(deadline)):
                    raise NoAnswer("the request could not be sent in time")
                data = data[self.sock.send(data) :]
            except OSError as error:
                raise NoAnswer(f"the connection broke: {error}") from None

    def reply(self, deadline: float) -> Any:
        reply = self._gets()
        while reply is NOTHING:
            self.receive(deadline)
            reply = self._gets()
        return reply

    def receive(self, deadline: float) -> None:
        if not self._poll(_milliseconds(deadline)):
            raise NoAnswer("no answer in time")
        try:
            chunk = self._recv(CHUNK)
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from None
        if not chunk:
            raise NoAnswer("the server closed the connection")
        self._feed(chunk)

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
            raise NoAnswer("no answer in time")
        try:
            self.sock.settimeout(left)
            chunk = self.sock.recv(CHUNK)
        except TimeoutError:
            raise NoAnswer("no answer in time") from None
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error}") from None
        if not chunk:
            raise NoAnswer("the server closed the connection")
        self._feed(chunk)


def _milliseconds(deadline: float) -> float:
    """For `poll`, which rounds up."""
    left = (deadline - now()) * 1000
    return 0 if left < 0 else left if left < DAY else DAY


def connect(address: Address, settings: Settings, deadline: float) -> Wire:
    """A connection that has introduced itself. Raises NotSent or Misconfigured."""
    wire: Wire | None = None
    sock: socket.socket | None = None
    try:
        sock = _open(address, settings, deadline)
        wire = TlsWire(sock) if settings.tls else Wire(sock)
        greeting, count = settings.greeting()
        wire.send(greeting, deadline)
        replies = [wire.reply(deadline) for _ in range(count)]
        wire.run_id = settings.greeted(address, replies)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError | NoAnswer):
            raise NotSent(f"could not connect: {error}") from None
        raise
    return wire


def _open(address: Address, settings: Settings, deadline: float) -> socket.socket:
    host, port = address
    left = deadline - now()
    if left <= 0:
        raise TimeoutError("no time was left")
    if not port:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(left)
            sock.connect(host)
        except BaseException:
            sock.close()
            raise
    else:
        sock = socket.create_connection((host, port), left)
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


class ThreadEar:
    """Listens in a thread of the caller's; woken through a socket pair."""

    def __init__(self, wire: Wire, hearing: Hearing) -> None:
        self.run_id = wire.run_id
        self._wire = wire
        self._hearing = hearing
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._poll = select.poll()
        self._poll.register(wire.sock.fileno(), select.POLLIN)
        self._poll.register(self._bell.fileno(), select.POLLIN)
        self._confirmed = 0

    async def subscribe(self, channels: list[str], deadline: float) -> None:
        self._tell("SUBSCRIBE", channels, deadline)

    async def unsubscribe(self, channels: list[str], deadline: float) -> None:
        self._tell("UNSUBSCRIBE", channels, deadline)

    def _tell(self, verb: str, channels: list[str], deadline: float) -> None:
        wanted = self._confirmed + len(channels)
        self._wire.send(pack(verb, *channels), deadline)
        while self._confirmed < wanted:
            self._deliver(self._wire.reply(deadline))

    async def listen(self, until: float) -> None:
        wire = self._wire
        while True:
            while (reply := wire._gets()) is not NOTHING:
                self._deliver(reply)
            if isinstance(wire.sock, ssl.SSLSocket) and wire.sock.pending():
                wire.receive(now() + 1)
                continue
            ready = self._poll.poll(_milliseconds(until))
            if not ready:
                return
            for fd, _ in ready:
                if fd == self._bell.fileno():
                    self._bell.recv(64)
                    return
            wire.receive(now() + 1)

    def _deliver(self, reply: Any) -> None:
        if not isinstance(reply, list):
            raise NoAnswer(f"the subscription was refused: {reply}")
        words = cast(list[bytes], reply)
        if words[0] == b"message":
            self._hearing(words[1], words[2])
        elif words[0] in (b"subscribe", b"unsubscribe"):
            self._confirmed += 1

    def wake(self) -> None:
        try:
            self._button.send(b"!")
        except OSError:  # it rings already, or nobody listens any more
            pass

    def close(self) -> None:
        self._wire.close()
        self._bell.close()
        self._button.close()


class ThreadTransport:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def quick(self, node: Node, data: bytes, deadline: float) -> tuple[Any, str] | None:
        """`ask` for one reply, without a coroutine; None if there is no connection at hand."""
        free = node.free
        moment = now()
        try:
            wire: Wire = free.pop()
        except IndexError:
            return None
        if moment - wire.used > IDLE and wire.looks_dead():
            self._discard(node, wire)
            return None
        try:
            reply = wire.quick(data, deadline)
        except BaseException:
            self._discard(node, wire)
            raise
        wire.used = moment
        free.append(wire)
        return reply, wire.run_id

    async def ask(
        self, node: Node, data: bytes, count: int, deadline: float, lane: int
    ) -> tuple[Any, str]:
        wire = self._take(node, deadline)
        try:
            wire.send(data, deadline)
            replies = [wire.reply(deadline) for _ in range(count)]
        except BaseException:
            self._discard(node, wire)
            raise
        wire.used = now()
        if len(node.free) < MOST_IDLE:
            node.free.append(wire)
        else:
            wire.close()
        return replies[0] if count == 1 else replies, wire.run_id

    def _take(self, node: Node, deadline: float) -> Wire:
        try:
            wire: Wire = node.free.pop()
        except IndexError:
            return connect(node.address, self._settings, deadline)
        if now() - wire.used > IDLE and wire.looks_dead():
            self._discard(node, wire)
            return connect(node.address, self._settings, deadline)
        return wire

    async def ask_alone(
        self, node: Node, data: bytes, count: int, deadline: float
    ) -> tuple[Any, str]:
        return await self.ask(node, data, count, deadline, 0)

    def _discard(self, node: Node, wire: Wire) -> None:
        """It failed; those that wait in the pool to the same server are not better."""
        wire.close()
        while node.free:
            try:
                node.free.pop().close()
            except IndexError:  # another thread was quicker
                break

    async def ear(self, node: Node, hearing: Hearing, deadline: float) -> ThreadEar:
        wire = connect(node.address, self._settings, deadline)
        try:
            return ThreadEar(wire, hearing)
        except BaseException:
            wire.close()
            raise

    async def close(self, nodes: list[Node]) -> None:
        for node in nodes:
            while node.free:
                try:
                    node.free.pop().close()
                except IndexError:
                    break
