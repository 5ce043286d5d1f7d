"""One connection of a crew: made step by step, and read when there is something to read.

Contract: nothing here waits. Replies come in the order of the requests, so a wire counts what it
has sent and received: `Sent` is the receipt of one letter. What was sent before the letter that is
asked about now, and not answered yet, is skipped when it comes. A farewell that is not acknowledged
when the wire ends is owed to its node.
Hazard: the resolver of host names has no time limit; name nodes by address where that matters.
Partner: `crew.py`, which polls all wires at once.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections import deque
from typing import Any

from holdfast.backends.quiet import Socket
from holdfast.backends.redis.wire import (
    NOTHING,
    Garbled,
    NoAnswer,
    NotSent,
    ReplyError,
    new_reader,
    show,
    unreachable,
)
from holdfast.backends.redlock.letters import Letter
from holdfast.backends.redlock.nodes import Debt, Member, NodeSettings
from holdfast.errors import Misconfigured
from holdfast.ports.clock import now

__all__ = ["Sent", "Wire", "unknown"]

CHUNK = 65536
AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

CONNECTING, SHAKING, GREETING, READY, DEAD = range(5)


class Sent:
    """The receipt of a letter."""

    __slots__ = ("line", "number")

    def __init__(self, line: Wire, number: int) -> None:
        self.line = line
        self.number = number

    @property
    def answered(self) -> bool:
        return self.line.received >= self.number


class Wire:
    __slots__ = (
        "_feed", "_from", "_gets", "_greeting", "_letter", "_plain", "_recv", "_refused", "_said",
        "_send", "_settings", "_wanted", "error", "fd", "fresh", "node", "out", "owed", "place",
        "polled_out", "received", "sent", "since", "sock", "state", "taught", "waited_for",
    )  # fmt: skip

    def __init__(self, node: Member, place: int, settings: NodeSettings) -> None:
        """Begins to connect. Raises OSError where that fails at once."""
        self.node, self.place = node, place
        self._settings = settings = settings.at(node.address)
        self._greeting = settings.greeting()
        self.state = DEAD
        self.received = self.sent = 0  # replies: that have come, and that will
        self.owed: deque[Debt | None] = deque()  # one for each reply that has not come
        self.since = now()  # when it was last heard of, came further, or had nothing to say
        self.error: Exception | None = None  # why it is dead
        self.fresh: list[Any] = []  # the replies to the letter that is asked about now
        self._from = 0  # the number of the last reply before those
        self.waited_for = False
        self._letter: Letter | None = None  # waits for the connection
        self._wanted = 0
        self._said: list[Any] = []  # in answer to the greeting
        self.out = b""  # what the kernel did not take yet
        self.polled_out = True  # the crew polls for writing, too
        self.taught = False  # a farewell was spelled out to it
        self._refused = False  # an error is among the fresh replies
        self._plain = settings.tls is None
        sock = _begin(node)
        self.sock: socket.socket = sock
        self.fd = sock.fileno()
        self._recv, self._send = sock.recv, sock.send
        reader = new_reader()
        self._feed, self._gets = reader.feed, reader.gets
        self.state = CONNECTING

    # -- what the crew asks -----------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether it waits until it can write."""
        return self.state == CONNECTING or bool(self.out)

    @property
    def answered(self) -> bool:
        return len(self.fresh) == self._wanted

    @property
    def reached(self) -> bool:
        """Whether any of the letter may have left."""
        return self.sent > self._from

    def post(self, letter: Letter) -> None:
        """Send a letter, now or as soon as we are connected."""
        ready = self.state == READY
        if ready and self.node.debts:
            self._pay()
        self.waited_for = True
        self._from = self.sent
        self._wanted = letter.count
        self.fresh = []
        self._refused = False
        if ready:
            self._say(letter, self._words(letter))
        else:
            self._letter = letter

    def _words(self, letter: Letter) -> bytes:
        """**Hazard**: a quorum is enough for a release, and then nobody reads what another node
        says of it, until the crew is used again: least of all that it does not know the script. So
        the first farewell on a connection is spelled out."""
        if self.taught or letter.debt(self.place) is None:
            return letter.words(self.place, self)
        self.taught = True
        return letter.spelled_out(self.place, self)

    def spell_out(self, letter: Letter) -> bool:
        """The node did not know a script: say it again in full; False if it knew them all."""
        if not self._refused or not any(map(unknown, self.fresh)):
            return False
        self._refused = False
        self._from = self.sent
        self.fresh = []
        self._say(letter, letter.spelled_out(self.place, self))
        return True

    def forget(self) -> None:
        """Nobody waits for the letter any more: what was not sent will not be."""
        self.waited_for = False
        letter, self._letter = self._letter, None
        if letter is not None and (debt := letter.debt(self.place)) is not None:
            self.node.owe(debt)

    def _say(self, letter: Letter, data: bytes) -> None:
        owed, place, count = self.owed, self.place, letter.count
        if not owed:
            self.since = now()
        if count > 1:
            owed.extend([None] * (count - 1))
        owed.append(letter.debt(place))
        self.sent += count
        if letter.receipts is not None:
            letter.receipts[place] = Sent(self, self.sent)
        self._transmit(data)

    def _transmit(self, data: bytes) -> None:
        if self.out:
            self.out += data
            return
        try:
            taken = self._send(data)
        except AGAIN:
            taken = 0
        except OSError as error:
            self.die(NoAnswer(f"the connection broke: {error}"))
            return
        if taken < len(data):
            self.out = data[taken:]

    # -- what happens -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Something can be read or written; afterwards it is further, or dead."""
        try:
            if self.state == READY:
                if self.out:
                    out, self.out = self.out, b""
                    self._transmit(out)
                self._read()
            elif self.state == CONNECTING:
                self._connected()
            elif self.state == SHAKING:
                self._shake()
            elif self.state == GREETING:
                self._read()
        except AGAIN:
            pass
        except (OSError, Garbled) as error:
            self.die(self._trouble(error))
        except (NotSent, NoAnswer, Misconfigured) as error:
            self.die(error)

    def _trouble(self, error: OSError | Garbled) -> Exception:
        if self.state == READY:
            return (
                error if isinstance(error, Garbled) else NoAnswer(f"the connection broke: {error}")
            )
        where = show(self.node.address)
        return unreachable(error, where, self._said, self._settings)

    def _connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        tls = self._settings.tls
        if tls is None:
            self._greet()
            return
        self.sock = tls.wrap_socket(
            self.sock, server_hostname=self.node.address[0], do_handshake_on_connect=False
        )
        self._recv, self._send = self.sock.recv, self.sock.send
        self.state, self.since = SHAKING, now()
        self._shake()

    def _shake(self) -> None:
        sock = self.sock
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        self._greet()

    def _greet(self) -> None:
        self.state, self.since = GREETING, now()
        self._transmit(self._greeting[0])

    def _read(self) -> None:
        gets = self._gets
        while True:
            chunk = self._recv(CHUNK)
            if not chunk:
                raise ConnectionResetError("the server closed the connection")
            self._feed(chunk)
            while (reply := gets()) is not NOTHING:
                self._heard(reply)
            if self._plain or not (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
                return

    def _heard(self, reply: Any) -> None:
        if self.state != READY:
            self._said.append(reply)
            if len(self._said) == self._greeting[1]:
                self._introduced()
            return
        if not self.owed:
            return  # nobody asked
        debt = self.owed.popleft()
        self.received += 1
        if self.owed:
            self.since = now()
        mine = self.waited_for and self.received > self._from
        if mine:
            self.fresh.append(reply)
        if isinstance(reply, ReplyError):
            self._refused = True
            if debt is not None and not (mine and unknown(reply)):
                if not unknown(reply):
                    self.node.failed(reply)  # else it would be said again at once
                self.node.owe(debt)  # it was refused, or nobody is there to spell it out

    def _introduced(self) -> None:
        self._settings.greeted(self.node.address, self._said)
        self.state = READY
        self._pay()
        letter, self._letter = self._letter, None
        if letter is not None:
            self._say(letter, self._words(letter))

    def _pay(self) -> None:
        debts = self.node.due()
        if debts:
            self.owed.extend(debts)
            self.node.paid(debts)
            self.sent += len(debts)
            self._from += len(debts)  # nobody waits for these answers
            self._transmit(b"".join([debt.data for debt in debts]))

    # -- the end ----------------------------------------------------------------------------------

    def die(self, error: Exception, blame: bool = True) -> None:
        """It is of no use any more; what was owed on it is owed to the node."""
        if self.state == DEAD:
            return
        if self.state != READY:
            self.node.door += 1
        self.state = DEAD
        self.error = error
        self.sock.close()
        if blame:
            self.node.failed(error)
        for debt in self.owed:
            if debt is not None:
                self.node.owe(debt)
        self.owed.clear()

    def __del__(self) -> None:
        sock = getattr(self, "sock", None)
        if sock is not None:
            sock.close()  # interrupted, or inherited by a forked child


def unknown(reply: Any) -> bool:
    """Whether the node did not know the script."""
    return isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")


def _begin(node: Member) -> socket.socket:
    """A name may have several addresses: the next one is tried when one has failed."""
    host, port = node.address
    found = socket.getaddrinfo(host.encode("idna"), port, 0, socket.SOCK_STREAM)
    family, kind, protocol, _, where = found[node.door % len(found)]
    sock = Socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        code = sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        node.door += 1
        sock.close()
        raise
    return sock
