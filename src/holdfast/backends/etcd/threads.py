"""The thread port's transport: sockets that block, each used by one thread at a time.

Contract: `channel.Transport`. A connection in the middle of an exchange belongs to the thread that
makes it; whatever interrupts it, a timeout or Ctrl-C, the connection is dropped and never used
again. Idle connections are kept for the next. After a fork the child's backend is a new one with
new connections; those inherited are only ever closed, which the parent does not notice.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Sequence

from holdfast.backends.addresses import connected
from holdfast.backends.etcd.channel import Block, Endpoint
from holdfast.backends.etcd.dial import GREETING, SIGN, STALE, broken, known, unreached
from holdfast.backends.etcd.http2 import NO_ANSWER, Failure, Http2, HttpError
from holdfast.backends.places import Places
from holdfast.backends.quiet import Bell, milliseconds
from holdfast.core.port import Port
from holdfast.ports import clock

__all__ = ["ThreadTransport"]

MOST, IDLE = 32, 16
"""So many connections to an endpoint are in use at most: more threads than that take turns, for
opening one costs the server more than any request. And so many are kept when nobody uses them."""

FRESH = 0.2
"""After so many seconds without use a connection is looked at before it is used again."""

CHUNK = 65536


def _left(deadline: float) -> float:
    left = deadline - clock.now()
    if left <= 0:
        raise TimeoutError("no time was left to connect")
    return left


def _dial(endpoint: Endpoint, deadline: float) -> socket.socket:
    found = known(endpoint.host, endpoint.port) or socket.getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM
    )
    return connected(found, deadline)


class _Link:
    """One connection."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, deadline: float) -> None:
        self.http = Http2()
        self.sock = sock = _dial(endpoint, deadline)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                sock.settimeout(_left(deadline))
                self.sock = tls.wrap_socket(sock, server_hostname=endpoint.host)
                self._be_greeted(deadline)
        except BaseException:
            self.sock.close()
            sock.close()
            raise
        self.used = clock.now()

    def _be_greeted(self, deadline: float) -> None:
        self.sock.settimeout(min(GREETING, _left(deadline)))
        try:
            data = self.sock.recv(CHUNK)
        except TimeoutError:
            return  # it waits for us to begin
        if not data:
            raise ConnectionError("the connection was closed")
        self.http.receive(data)

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        if hasattr(self, "sock"):  # an interrupted exchange drops it without a word
            self.sock.close()

    def usable(self, deadline: float) -> bool:
        """Whether it may be used once more."""
        if self.http.closing:
            return False
        idle = clock.now() - self.used
        if idle < FRESH:
            return True
        try:
            self.sock.settimeout(0)
            while data := self.sock.recv(CHUNK):
                self.http.receive(data)
        except (BlockingIOError, ssl.SSLWantReadError):
            return not self.http.closing and (idle < STALE or self._lives(deadline))
        except (OSError, HttpError):
            return False
        return False

    def _lives(self, deadline: float) -> bool:
        self.http.ping()
        try:
            self.sock.settimeout(min(SIGN, _left(deadline)))
            self.sock.sendall(self.http.out)
            self.http.out.clear()
            data = self.sock.recv(CHUNK)
            self.http.receive(data)
        except (OSError, HttpError):
            return False
        return bool(data) and not self.http.closing

    def exchange(self, calls: Sequence[Block], deadline: float) -> list[bytes | Failure]:
        http, sock = self.http, self.sock
        numbers = [http.begin(headers, message) for headers, message in calls]
        results: dict[int, bytes | Failure] = {}
        waiting = set(numbers)
        trouble = broken(None)
        try:
            while True:
                left = deadline - clock.now()
                if left <= 0:
                    raise TimeoutError
                sock.settimeout(left)
                if http.out:
                    sock.sendall(http.out)
                    http.out.clear()
                if not waiting:
                    break
                data = sock.recv(CHUNK)
                if not data:
                    raise ConnectionError("the connection was closed")
                for number, message, failure in http.receive(data):
                    if message is not None:
                        results[number] = message
                        continue
                    waiting.discard(number)
                    if failure is not None:
                        results[number] = failure
                    elif number not in results:
                        results[number] = Failure(NO_ANSWER, "an answer without a message")
        except TimeoutError:
            trouble = Failure(NO_ANSWER, "it did not answer in time")
            http.closing = True
        except (OSError, HttpError) as error:
            trouble = broken(error)
            http.closing = True  # perhaps with half a frame sent: not used again
        self.used = clock.now()
        for number in waiting:
            results[number] = trouble
        return [results[number] for number in numbers]


class _Pool(Places):
    """The connections to one endpoint."""

    def __init__(self, port: Port) -> None:
        super().__init__(port, MOST)
        self.idle: list[_Link] = []


class ThreadTransport:
    def __init__(self, port: Port, tls: ssl.SSLContext | None) -> None:
        self._port = port
        self._tls = tls
        self._pools: dict[tuple[Endpoint, bool], _Pool] = {}
        self._closed = False

    async def exchange(
        self, endpoint: Endpoint, calls: Sequence[Block], deadline: float, apart: bool
    ) -> list[bytes | Failure]:
        pool = self._pools.get((endpoint, apart))
        if pool is None:
            pool = self._pools.setdefault((endpoint, apart), _Pool(self._port))
        place = await pool.place(lambda: deadline)
        if place is None:
            text = f"all {MOST} connections to {endpoint} are in use"
            return [Failure(NO_ANSWER, text, applied=False)] * len(calls)
        try:
            return self._exchange(endpoint, pool.idle, calls, deadline)
        finally:
            pool.leave(place)

    def _exchange(
        self, endpoint: Endpoint, idle: list[_Link], calls: Sequence[Block], deadline: float
    ) -> list[bytes | Failure]:
        link: _Link | None = None
        while link is None:
            try:
                link = idle.pop()
            except IndexError:
                break
            if not link.usable(deadline):
                link.close()
                link = None
                idle.clear()  # where one has gone the others have: not one after the other
        if link is None:
            connected = self._connect(endpoint, deadline)
            if isinstance(connected, Failure):
                return [connected] * len(calls)
            link = connected
        results = link.exchange(calls, deadline)
        if link.http.closing:
            link.close()
            idle.clear()  # where one has failed the others are no better: nobody shall find out
        elif len(idle) < IDLE and not self._closed:
            idle.append(link)
        else:
            link.close()
        return results

    def _connect(self, endpoint: Endpoint, deadline: float) -> _Link | Failure:
        try:
            return _Link(endpoint, self._tls, deadline)
        except (OSError, HttpError) as error:
            return unreached(str(endpoint), error)

    async def stream(
        self, endpoint: Endpoint, headers: bytes, deadline: float
    ) -> ThreadStream | Failure:
        link = self._connect(endpoint, deadline)
        return link if isinstance(link, Failure) else ThreadStream(link, headers)

    async def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            while pool.idle:
                try:
                    pool.idle.pop().close()
                except IndexError:
                    break


class ThreadStream:
    """All reading and writing is done by the thread that calls `receive` (a TLS connection bears
    nothing else); the others leave what they have to say and nudge it."""

    def __init__(self, link: _Link, headers: bytes) -> None:
        self._link = link
        self._sock = link.sock
        self._http = link.http
        self._number = self._http.begin(headers, None)
        self._outbox: deque[bytes | None] = deque()  # None: a ping
        self._nudged = False
        self._inbox: deque[bytes | Failure] = deque()
        self._bell = Bell()
        self.heard = clock.now()
        self._sock.setblocking(False)

    def send(self, message: bytes) -> None:
        self._outbox.append(message)
        self._bell.ring()

    def ping(self) -> None:
        self._outbox.append(None)
        self._bell.ring()

    def nudge(self) -> None:
        self._nudged = True
        self._bell.ring()

    async def receive(self, deadline: float) -> bytes | Failure | None:
        if self._inbox:
            return self._inbox.popleft()
        try:
            self._move(deadline)
            while not self._inbox and not self._nudged and clock.now() < deadline:
                self._move(deadline)
        except (OSError, HttpError) as error:
            self._inbox.append(broken(error))
        if self._inbox:
            return self._inbox.popleft()
        self._nudged = False
        return None

    def _move(self, deadline: float) -> None:
        """Write what can be written, wait, read what can be read."""
        http = self._http
        while self._outbox:
            message = self._outbox.popleft()
            if message is None:
                http.ping()
            else:
                http.send(self._number, message)
        self._write()
        left = milliseconds(deadline)
        # A TLS connection may have read more than it gave us.
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            left = 0
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if http.out else 0))
        ready = {number for number, _ in poll.poll(left)}
        if self._bell.fileno() in ready:
            self._bell.hush()
        self._read()

    def _write(self) -> None:
        out = self._http.out
        while out:
            try:
                del out[: self._sock.send(out)]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return

    def _read(self) -> None:
        while True:
            try:
                data = self._sock.recv(CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                raise ConnectionError("the connection was closed")
            self.heard = clock.now()
            for _, message, failure in self._http.receive(data):
                if message is not None:
                    self._inbox.append(message)
                else:
                    self._inbox.append(failure or Failure(NO_ANSWER, "the stream has ended"))
            if self._http.closing:
                self._inbox.append(Failure(NO_ANSWER, "the server is going away"))

    async def close(self) -> None:
        self._bell.close()
        self._link.close()
