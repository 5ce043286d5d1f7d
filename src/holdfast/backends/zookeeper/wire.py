"""One kazoo client: one connection thread, one session and no second one. All we know of kazoo.

Contract: `send` puts requests on the session in order, from any thread, and never waits; ZooKeeper
answers them in order, so who waits for the last of several has the others too. An answer is set in
the connection thread itself: no completion thread, no future in an executor. What happens to the
session is told to a `Listener`, in the connection thread, which it must not keep.

Hazards, each met in kazoo 2.10 to 2.11:
- After an expiry the same client begins another session. Ours ends: nodes of two sessions would
  look like one claim.
- It does not notice a silent connection while requests are sent on it: `drop` is for who does.
- The timeout that the server granted is known inside `_connect` only.
- An error code that kazoo has no class for kills its thread; so does nothing else we send.
- `KazooClient._call` swallows a KeyboardInterrupt and waits when its pipe is full; requests are put
  on its queue here instead, and sent by our own `_pump`.
- It logs requests at DEBUG, passwords among them: such records end here (law 9).
- Its select makes an epoll set for every call.
"""

# kazoo has no types: what leaves this file has.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

import codecs
import logging
import math
import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from kazoo import exceptions  # type: ignore[import-untyped]
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.handlers.threading import (  # type: ignore[import-untyped]
    SequentialThreadingHandler,
)
from kazoo.protocol import serialization  # type: ignore[import-untyped]
from kazoo.protocol.states import KazooState, KeeperState  # type: ignore[import-untyped]

from holdfast.backends.zookeeper.place import Place
from holdfast.backends.zookeeper.requests import Request
from holdfast.core.port import Event
from holdfast.ports import clock

__all__ = ["Listener", "Reply", "Wire"]

CONNECT_PATIENCE = 3.0
"""Seconds for a host to accept a connection, and again for each answer until the session is known,
before the next is tried. kazoo would wait for the session's whole timeout; and a server that ends a
session just when it is resumed may never answer (seen on 3.8)."""

SLOWEST_RETRY = 0.5
HEAD = struct.Struct("!iii")  # length, xid, type
INT = struct.Struct("!i")

codecs.lookup("idna")  # getaddrinfo would import it in a thread, which a fork may cut short


class _Close(serialization.Close):  # type: ignore[misc]
    """Ends the session, and all its nodes; unlike kazoo's, it can be waited for."""

    def __bool__(self) -> bool:
        return True  # kazoo answers no request that is false, as an empty tuple is

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> bool:
        return True


class Reply:
    """What kazoo sets when the answer comes. With an event it can be waited for."""

    __slots__ = ("done", "error", "event", "sent", "value")

    def __init__(self, event: Event | None = None) -> None:
        self.event = event
        self.value: Any = None
        self.error: Exception | None = None
        self.done = False
        self.sent = 0.0

    def set(self, value: Any = None) -> None:
        self.value = value
        self._answered()

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._answered()

    def _answered(self) -> None:
        self.done = True
        if self.event is not None:
            self.event.set()


class Listener(Protocol):
    """Whom a wire tells, in its connection thread."""

    def on_connected(self, session_id: int, timeout: float, sent: float) -> None:
        """The server knows the session and will keep it for `timeout`, at least from `sent`."""

    def on_suspended(self) -> None:
        """The connection is lost; every request under way was answered with an error."""

    def on_ended(self, reason: str, gone: bool) -> None:
        """There will be no more connection; `gone` says that the server told so."""

    def on_watched(self, path: str | None) -> None:
        """Something happened to a node that was watched; None: to the connection, so all watches
        are over."""


class _NoSecrets(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


log = logging.getLogger("holdfast.zookeeper")
log.addFilter(_NoSecrets())


class Wire:
    def __init__(self, place: Place, timeout: float, listener: Listener) -> None:
        self._listener = listener
        self.tls = place.tls
        self._leaving: Reply | None = None
        self._quitting = False
        self.over = False
        self.up = False
        self.trouble = ""  # why the last attempt to connect failed
        self.refusal = ""  # why there is no point in another one
        self._handler = _Handler(self)
        self._client: Any = KazooClient(
            hosts=place.hosts,
            timeout=timeout,
            handler=self._handler,
            auth_data=set(place.auth),
            sasl_options=place.sasl,
            connection_retry={
                "max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": SLOWEST_RETRY,
                "sleep_func": self._handler.sleep_func,
            },
            command_retry={"sleep_func": self._handler.sleep_func},
            logger=log,
        )  # fmt: skip
        self._client.add_listener(self._changed)
        self._connection: Any = self._client._connection
        self._connect = self._connection._connect
        self._connection._connect = self._connected
        self._connection._send_request = self._pump

    def start(self) -> None:
        """Begin to connect, in a thread of its own."""
        self._client.start_async()

    # -- requests, from any thread ----------------------------------------------------------------

    def send(self, *requests: tuple[Request | _Close, Reply]) -> None:
        """In this order, and all of them, unless the session is over."""
        self._client._queue.extend(requests)
        self._wake()
        if self.over:  # it may have ended before they were queued, and nobody looks there again
            for _, reply in requests:
                if not reply.done:
                    reply.set_exception(exceptions.SessionExpiredError())

    def _wake(self) -> None:
        bell = self._connection._write_sock
        if bell is not None:
            try:
                bell.send(b"\0", socket.MSG_DONTWAIT)
            except OSError:  # full: it is about to be read, and the whole queue with it; or closed
                pass

    def hurry(self) -> None:
        """Somebody waits for a connection: try now, and not after kazoo's pause."""
        self._handler.hurried.set()

    def unanswered_since(self) -> float | None:
        """When the oldest request was sent that has no answer; None: all have one."""
        try:
            reply: Reply = self._client._pending[0][1]
        except IndexError:
            return None
        return reply.sent

    def drop(self) -> None:
        """Give up this connection for another one. kazoo does that when a ping gets no answer, but
        sends none as long as there are requests, answered or not."""
        try:
            self._connection._socket.shutdown(socket.SHUT_RDWR)
        except (AttributeError, OSError):  # it has none just now
            pass

    def leave(self) -> None:
        """End the session, now or when there is a connection again."""
        if self._leaving is None:
            self._leaving = Reply()
            if self.up:
                self.send((_Close(), self._leaving))

    def refuse(self, reason: str) -> None:
        """There is no point in trying again."""
        self.refusal = reason
        self.quit()

    def quit(self) -> None:
        """Stop connecting; what the server has of the session ends by its timeout."""
        self._quitting = True
        self._client._stopped.set()
        self.hurry()
        self._wake()

    # -- what happens, in the connection thread ---------------------------------------------------

    def _connected(self, *address: Any) -> tuple[float, float]:
        if self.over or self._quitting:
            self._client._stopped.set()
            raise exceptions.ConnectionDropped("the session is over")
        self._handler.hurried.clear()
        if self._going():
            raise self._buried(*address)
        sent = clock.now()
        self._handler.patience = CONNECT_PATIENCE
        try:
            read_timeout, connect_timeout = self._connect(*address)
        finally:
            self._handler.patience = math.inf
        self.up = True
        if leaving := self._going():  # since we looked
            self.send((_Close(), leaving))
        # kazoo reads for two thirds of what the server granted.
        self._listener.on_connected(self._client._session_id, read_timeout * 1.5 / 1000, sent)
        return read_timeout, connect_timeout

    def _going(self) -> Reply | None:
        return self._leaving

    def _buried(self, host: str, address: str, port: int) -> Exception:
        """End the session in one breath with resuming it. Waiting for the answer in between would
        keep it alive for ever, where requests arrive and answers do not."""
        client = self._client
        resume = serialization.Connect(
            0, client.last_zxid, client._session_timeout, client._session_id or 0,
            client._session_passwd, False,
        ).serialize()  # fmt: skip
        frames = INT.pack(len(resume)) + resume + HEAD.pack(8, 1, _Close.type)
        answer = b""
        try:
            with self._handler.create_connection((address, port), host) as link:
                link.sendall(frames)
                while chunk := link.recv(4096):
                    answer += chunk
        except OSError:
            pass
        # The session's timeout, which is 0 if it is not known any more; behind it what became of
        # the close.
        resumed = 4 + INT.unpack_from(answer)[0] if len(answer) >= 12 else math.inf
        if len(answer) >= 12 and (INT.unpack_from(answer, 8)[0] <= 0 or len(answer) > resumed):
            error: Exception = exceptions.SessionExpiredError()
        else:
            error = exceptions.ConnectionDropped("the end of the session was not confirmed")
        return error

    def _pump(self, _read_timeout: float, write_timeout: float) -> None:
        """Everything on the queue, in one write. kazoo reads one byte and sends one request for
        it, so a byte that a full pipe refused would leave a request behind."""
        connection, client = self._connection, self._client
        connection._read_sock.recv(4096)
        queue, pending = client._queue, client._pending
        parts: list[bytes] = []
        now = clock.now()
        while queue:
            request, reply = queue.popleft()
            reply.sent = now
            xid = connection._xid = connection._xid % 2147483647 + 1
            body = request.serialize()
            parts.append(HEAD.pack(len(body) + 8, xid, request.type) + body)
            pending.append((request, reply, xid))
        if parts:
            connection._write(b"".join(parts), write_timeout)

    def _changed(self, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self.up = False
            self._listener.on_suspended()
        elif state == KazooState.LOST and not self.over:
            self.over, self.up = True, False
            leaving = self._leaving
            closed = leaving is not None and leaving.done and leaving.error is None
            what = self._client.client_state
            gone = closed or what == KeeperState.EXPIRED_SESSION
            if what == KeeperState.AUTH_FAILED:
                self.refusal = "the server refused the credentials"
            reason = self.refusal or "the session was closed"
            if what == KeeperState.EXPIRED_SESSION:
                reason = "the server ended the session"
            self._listener.on_ended(reason, gone)

    def watched(self, event: Any) -> None:
        """The one callback of all watches: kazoo keeps each path's callbacks as a set."""
        self._listener.on_watched(event.path)

    def finished(self) -> None:
        self._changed(KazooState.LOST)
        self._connection.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Everything in the connection thread."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self.hurried = threading.Event()
        self.patience = math.inf

    def sleep_func(self, seconds: float) -> None:
        self.hurried.wait(seconds)

    def start(self) -> None:
        """No threads for completions and watches: ours do not wait."""

    def stop(self) -> None: ...

    def spawn(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        def body() -> None:
            try:
                func(*args, **kwargs)
            finally:
                self._wire.finished()

        return super().spawn(body)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, **_given: Any
    ) -> socket.socket:
        """kazoo's own leaves a socket open whose handshake failed."""
        wire = self._wire
        try:
            link = socket.create_connection(address, CONNECT_PATIENCE)
            try:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return link if wire.tls is None else wire.tls.wrap(link, hostname)
            except BaseException:
                link.close()
                raise
        except ssl.SSLCertVerificationError as error:
            wire.refuse(f"the server's certificate is not trusted: {error.verify_message}")
            raise
        except OSError as error:
            wire.trouble = error.strerror or str(error)
            raise

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        poll = select.poll()
        for waits in rlist:
            poll.register(waits, select.POLLIN)
        for waits in wlist:
            poll.register(waits, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(min(timeout, self.patience) * 1000)}
        return (
            [waits for waits in rlist if waits.fileno() in ready],
            [waits for waits in wlist if waits.fileno() in ready],
            [],
        )
