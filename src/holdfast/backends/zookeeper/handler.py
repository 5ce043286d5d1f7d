"""What kazoo asks of its surroundings: threads, sockets and pauses.

Contract: one thread for a connection and none beside it, so callbacks run there and must not wait.
Hazards, each met in kazoo 2.10 to 2.11: its own `create_connection` leaves a socket open whose
handshake failed; its select makes an epoll set for every call, and does not see what TLS has
deciphered already: an answer that came in one record with another would wait for the next record.
Partner: `wire.py`.
"""

# kazoo has no types: what leaves this file has.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import math
import select
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Protocol

from kazoo.handlers.threading import (  # type: ignore[import-untyped]
    SequentialThreadingHandler,
)

from holdfast.backends.quiet import Socket, socket_pair
from holdfast.ports.bare import Thread, ThreadEvent
from holdfast.ports.clock import now

__all__ = ["CONNECT_PATIENCE", "Handler"]

CONNECT_PATIENCE = 3.0
"""Seconds for a host to accept a connection, and again for each answer until the session is known,
before the next is tried. kazoo would wait for the session's whole timeout; and a server that ends a
session just when it is resumed may never answer (seen on 3.8)."""


STRANGE = (
    "it takes the connection, and ends it or does not answer: it may have no quorum, too many "
    "clients, or data older than this client has seen, or be no ZooKeeper server"
)


class Owner(Protocol):
    """Whom it tells, in the connection thread."""

    trouble: str

    def finished(self) -> None:
        """The connection thread ends."""

    def beat(self) -> None:
        """It is about to wait: for an answer, or until a ping is due."""

    def distrust(self, reason: str) -> None:
        """None of the hosts in a round was who it should be."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Everything in the connection thread."""

    def __init__(self, owner: Owner, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._owner = owner
        self._tls = tls
        self.hurried = ThreadEvent()  # set by finalisers
        self.patience = math.inf
        self._distrust: list[str] = []  # of each host tried in this round, "" if it is another

    def sleep_func(self, seconds: float) -> None:
        """A slice of kazoo's pause when it has tried all hosts."""
        distrust, self._distrust = self._distrust, []
        if distrust and all(distrust):
            self._owner.distrust(distrust[0])
        self.hurried.block(now() + seconds)

    def start(self) -> None:
        """No threads for completions and watches: ours do not wait."""

    def stop(self) -> None: ...

    def spawn(self, func: Any, *args: Any, **kwargs: Any) -> Thread:
        def body() -> None:
            try:
                func(*args, **kwargs)
            finally:
                self._owner.finished()

        thread = Thread(body, "holdfast-zookeeper")
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_socket_pair(self) -> tuple[Socket, Socket]:
        return socket_pair()

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, **_given: Any
    ) -> socket.socket:
        """kazoo's own leaves a socket open whose handshake failed."""
        try:
            link = socket.create_connection(address, CONNECT_PATIENCE)
            try:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    link = self._tls.wrap_socket(link, server_hostname=hostname)
            except BaseException:
                link.close()
                raise
        except ssl.SSLCertVerificationError as error:
            self._owner.trouble = f"the server's certificate is not trusted: {error.verify_message}"
            self._distrust.append(self._owner.trouble)
            raise
        except OSError as error:
            self._owner.trouble = error.strerror or str(error)
            self._distrust.append("")
            raise
        self._distrust.append("")
        self._owner.trouble = STRANGE  # if nothing comes of it
        return link

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        self._owner.beat()
        poll = select.poll()
        ready: set[int] = set()
        for waits in rlist:
            poll.register(waits, select.POLLIN)
            if isinstance(waits, ssl.SSLSocket) and waits.pending():
                ready.add(waits.fileno())  # deciphered already: the kernel knows nothing of it
        for waits in wlist:
            poll.register(waits, select.POLLOUT)
        patience = 0 if ready else min(timeout, self.patience) * 1000
        ready.update(fd for fd, _ in poll.poll(patience))
        return (
            [waits for waits in rlist if waits.fileno() in ready],
            [waits for waits in wlist if waits.fileno() in ready],
            [],
        )
