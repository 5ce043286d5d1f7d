"""One kazoo client: one connection thread, one session and no second one. All we know of kazoo.

Contract: `send` puts requests on the session in order, from any thread, and never waits; ZooKeeper
answers them in order, so who waits for the last of several has the others too. An answer is set in
the connection thread itself: no completion thread, no future in an executor. What happens to the
session is told to a `Listener`, in the connection thread, which it must not keep.
Partner: `handler.py`, kazoo's threads and sockets.

Hazards, each met in kazoo 2.10 to 2.11:
- After an expiry the same client begins another session. Ours ends: nodes of two sessions would
  look like one claim.
- It does not notice a silent connection while requests are sent on it: `drop` is for who does.
- The timeout that the server granted is known inside `_connect` only.
- What it does not expect while connecting kills its thread: here it is one more failure.
- During SASL it takes every lost connection for a wrong password.
- A server that insists on authentication refuses the first request and hangs up. For kazoo those
  sent with it are unanswered, as if they could have been executed, and it connects again.
- A stopped client stays connected, and its session alive, until it is disconnected: `quit` does.
- `KazooClient._call` swallows a KeyboardInterrupt and waits when its pipe is full; requests are put
  on its queue here instead, and sent by our own `_pump`.
- It logs requests at DEBUG, passwords among them: such records end here (law 9).
"""

# kazoo has no types: what leaves this file has.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
import math
import socket
import struct
from typing import Any, Protocol

from kazoo import exceptions  # type: ignore[import-untyped]
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.handlers.threading import KazooTimeoutError  # type: ignore[import-untyped]
from kazoo.protocol import serialization  # type: ignore[import-untyped]
from kazoo.protocol.states import KazooState, KeeperState  # type: ignore[import-untyped]

from holdfast.backends.zookeeper.handler import CONNECT_PATIENCE, Handler
from holdfast.backends.zookeeper.place import Place
from holdfast.backends.zookeeper.refusals import NO_LOGIN, NoLogin
from holdfast.backends.zookeeper.requests import Request
from holdfast.core.port import Event
from holdfast.ports import clock

__all__ = ["Listener", "Reply", "Wire"]

SLOWEST_RETRY = 0.5
WINDOW = 1000
"""Requests under way: so many a server takes before it reads no more (globalOutstandingLimit)."""

HEAD = struct.Struct("!iii")  # length, xid, type
INT = struct.Struct("!i")


class _Close(serialization.Close):  # type: ignore[misc]
    """Ends the session, and all its nodes; unlike kazoo's, it can be waited for."""

    def __bool__(self) -> bool:
        return True  # kazoo answers no request that is false, as an empty tuple is

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> bool:
        return True


class Reply:
    """What kazoo sets when the answer comes. With an `event` it can be waited for."""

    __slots__ = ("done", "error", "event", "sent", "value")

    def __init__(self) -> None:
        self.event: Event | None = None
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

    def on_ended(self, reason: str, gone: bool, left: bool) -> None:
        """There will be no more connection; `gone` says that the server told so, and `left` that it
        still had the session when we ended it."""

    def on_beat(self) -> None:
        """Often: before each ping, which keeps the session, and more."""

    def on_watched(self, path: str | None) -> None:
        """Something happened to a node that was watched; None: to the connection, so all watches
        are over."""


class _NoSecrets(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


# What kazoo says: a dozen lines for one failed attempt, of which ours has the reason. Without a
# handler Python would print them; with this one they appear where logging is configured.
kazoos_log = logging.getLogger("holdfast.zookeeper")
kazoos_log.addFilter(_NoSecrets())
kazoos_log.addHandler(logging.NullHandler())


class Wire:
    def __init__(self, place: Place, timeout: float, listener: Listener) -> None:
        self._listener = listener
        self._leaving: Reply | None = None
        self._quitting = False
        self._welcome = False  # the server has let us in before
        self._served = False  # and executed a request
        self.over = False
        self.up = False
        self.trouble = ""  # why the last attempt to connect failed
        self.refusal = ""  # why there is no point in another one
        self._handler = Handler(self, place.tls)
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
            logger=kazoos_log,
        )  # fmt: skip
        self._client.add_listener(self._changed)
        self._connection: Any = self._client._connection
        self._connect = self._connection._connect
        self._connection._connect = self._connected
        self._resolve = self._connection._expand_client_hosts
        self._connection._expand_client_hosts = self._resolved
        self._connection._send_request = self._pump
        self._read_response = self._connection._read_response
        self._connection._read_response = self._response
        self._answered_at = 0.0

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
        """Since when the oldest request waits for its answer, while none came to others either: of
        thousands that were sent at once, the last is answered late. None: all have one."""
        try:
            reply: Reply = self._client._pending[0][1]
        except IndexError:
            return None
        return max(reply.sent, self._answered_at)

    def drop(self) -> None:
        """Give up this connection for another one. kazoo does that when a ping gets no answer, but
        sends none as long as there are requests, answered or not."""
        link = self._connection._socket
        if link is not None:
            try:
                # Not an SSLSocket's own, which forgets the keys: what was received and not yet
                # read would be taken for answers, still encrypted.
                socket.socket.shutdown(link, socket.SHUT_RDWR)
            except OSError:  # it has none just now
                pass

    def leave(self) -> None:
        """End the session, now or when there is a connection again."""
        if self._leaving is None:
            self._leaving = Reply()
            if self.up:
                self.send((_Close(), self._leaving))

    def distrust(self, reason: str) -> None:
        """None of the hosts is who it should be: there is no point in trying again. But a session
        that there is may be resumed while it lasts."""
        if not self._welcome:
            self.refusal = reason
            self.quit()

    def quit(self) -> None:
        """Stop connecting; what the server has of the session ends by its timeout."""
        self._quitting = True
        self._client._stopped.set()
        self.hurry()
        self.drop()

    # -- what happens, in the connection thread ---------------------------------------------------

    def _connected(self, *address: Any) -> tuple[float, float]:
        client = self._client
        if self.over or self._quitting or (self._going() and client._session_id is None):
            client._stopped.set()
            raise exceptions.ConnectionDropped("the session is over, or was never begun")
        if self._going():
            raise self._buried(*address)
        sent = clock.now()
        self._handler.patience = CONNECT_PATIENCE
        try:
            read_timeout, connect_timeout = self._connect(*address)
        except (exceptions.AuthFailedError, NoLogin) as error:
            if not self._welcome:
                raise exceptions.AuthFailedError(str(error)) from error
            # The password was right before: it is only the connection that ended.
            raise exceptions.ConnectionDropped("while presenting the credentials") from error
        except (exceptions.ConnectionDropped, exceptions.SessionExpiredError, KazooTimeoutError):
            raise
        except Exception as error:
            self.trouble = str(error) or type(error).__name__
            raise exceptions.ConnectionDropped(self.trouble) from error
        finally:
            self._handler.patience = math.inf
        if self._quitting:
            raise exceptions.ConnectionDropped("nobody wants it any more")
        self._welcome = self.up = True
        if leaving := self._going():  # since we looked
            self.send((_Close(), leaving))
        # kazoo reads for two thirds of what the server granted.
        self._listener.on_connected(client._session_id, read_timeout * 1.5 / 1000, sent)
        return read_timeout, connect_timeout

    def _resolved(self) -> Any:
        """A round begins."""
        self._handler.hurried.clear()
        hosts = self._resolve()
        if not hosts:
            self.trouble = "no address is known for its name"
        return hosts

    def _going(self) -> Reply | None:
        return self._leaving

    def _buried(
        self, host: str, address: str, port: int
    ) -> exceptions.ConnectionDropped | exceptions.SessionExpiredError:
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
        known = len(answer) >= 12 and INT.unpack_from(answer, 8)[0] > 0
        if known and len(answer) > resumed and self._leaving is not None:
            self._leaving.error = None  # that of a close on a connection that was lost
            self._leaving.set()
        elif known or len(answer) < 12:
            return exceptions.ConnectionDropped("the end of the session was not confirmed")
        return exceptions.SessionExpiredError()

    def _pump(self, _read_timeout: float, write_timeout: float) -> None:
        """What is on the queue, in one write. kazoo reads one byte and sends one request for it, so
        a byte that a full pipe refused would leave a request behind. No more than the server takes
        at once: nothing is read while we write, and ten thousand would all wait for the last."""
        connection, client = self._connection, self._client
        connection._read_sock.recv(4096)
        queue, pending = client._queue, client._pending
        parts: list[bytes] = []
        now = clock.now()
        while queue and len(pending) < WINDOW:
            request, reply = queue.popleft()
            reply.sent = now
            xid = connection._xid = connection._xid % 2147483647 + 1
            body = request.serialize()
            parts.append(HEAD.pack(len(body) + 8, xid, request.type) + body)
            pending.append((request, reply, xid))
        if parts:
            connection._write(b"".join(parts), write_timeout)

    def _response(self, *answer: Any) -> Any:
        """Of a request; not of a ping."""
        self._answered_at = clock.now()
        client = self._client
        if client._queue and len(client._pending) <= WINDOW // 2:
            self._wake()
        reply: Reply = client._pending[0][1]
        result = self._read_response(*answer)
        if isinstance(reply.error, NoLogin):
            self._turned_away(reply.error)
        else:
            self._served = True
        return result

    def _turned_away(self, error: Exception) -> None:
        """The server wants us to authenticate: it has executed nothing of what was sent with this.
        If it never did, nor will it; else it was another one, or is newly so strict, and there may
        be leases that yet another one would keep."""
        if not self._served:
            self.refusal = NO_LOGIN
            self.quit()
            self._changed(KazooState.LOST)  # before anybody is woken who would use it again
        while self._client._pending:
            self._client._pending.popleft()[1].set_exception(error)

    def _changed(self, state: str) -> None:
        if state == KazooState.SUSPENDED and not self.over:
            self.up = False
            self._listener.on_suspended()
        elif state == KazooState.LOST and not self.over:
            self.over, self.up = True, False
            leaving = self._leaving
            closed = leaving is not None and leaving.done and leaving.error is None
            what = self._client.client_state
            # Without an id there never was one, as far as we have sent anything on it.
            gone = closed or what == KeeperState.EXPIRED_SESSION or self._client._session_id is None
            gone = gone or (self.refusal == NO_LOGIN and not self._served)
            if what == KeeperState.AUTH_FAILED:
                self.refusal = "the server refused the credentials"
            reason = self.refusal or "the session was closed"
            if what == KeeperState.EXPIRED_SESSION and not closed:
                reason = "the server ended the session"
            self._listener.on_ended(reason, gone, closed)

    def watched(self, event: Any) -> None:
        """The one callback of all watches: kazoo keeps each path's callbacks as a set."""
        self._listener.on_watched(event.path)

    def beat(self) -> None:
        self._listener.on_beat()

    def finished(self) -> None:
        self._changed(KazooState.LOST)
        self._connection.close()
