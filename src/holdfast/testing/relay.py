"""The engine of `proxy.py`: sockets, one thread, and the path of each frame through the rules.

Laws:

1. One condition, `changed`, guards everything and is told of every change. Whoever holds it may do
   anything, in any thread; only `select` runs without it. Hazard: so whatever `select` returns may
   have been closed by the time it is looked at.
2. A direction is a queue. Only its head is ever sent, so nothing overtakes, the end included.
3. A connection lives until both directions have delivered their end, or have nobody to deliver to.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Literal, TypeAlias, cast

from holdfast.testing.framing import FRAMINGS, Frame, Way
from holdfast.testing.rules import Parcel, Rule

Address: TypeAlias = tuple[str, int]
Door: TypeAlias = Literal["open", "paused", "shut"]

WINDOW = 256 * 1024  # bytes queued in one direction before the proxy stops reading
LINGER = 0.5  # seconds a released request has before the server learns that its client left
LOG = 1000  # frames remembered per direction
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Flow:
    """One direction of a connection: what was read from `source` and not yet sent to `sink`."""

    def __init__(self, way: Way, framing: str, source: socket.socket, sink: socket.socket) -> None:
        self.way: Way = way
        self.source, self.sink = source, sink
        self.framer = FRAMINGS[framing](way)
        self.queue: deque[Parcel] = deque()
        self.size = 0  # bytes queued
        self.begun = 0  # requests or replies
        self.reading = True  # the source has not ended
        self.blocked = False  # the sink's buffer is full
        self.finished = False  # the sink was told the end, or is gone

    def full(self) -> bool:
        return self.size > WINDOW and not self.queue[-1].holders

    def send_due(self, now: float) -> float | None:
        """Send what is due; return when to come back, or None to have the connection reset."""
        self.blocked = False
        while self.queue:
            parcel = self.queue[0]
            if parcel.holders or parcel.due > now:
                return math.inf if parcel.holders else parcel.due
            try:
                sent = self.sink.send(parcel.data[: parcel.piece or None]) if parcel.data else 0
            except BlockingIOError:  # its buffer is full, or it is still connecting
                self.blocked = True
                break
            except OSError:  # the peer is gone; reading from it tells the other side
                self.finish()
                break
            self.size -= sent
            parcel.data = parcel.data[sent:]
            if parcel.data:
                parcel.due = now + parcel.gap
                continue
            self.queue.popleft()
            if parcel.end == "reset":
                return None
            if parcel.end:
                self.finish()
        return math.inf

    def finish(self) -> None:
        """Tell the sink that nothing more comes."""
        self.finished = True
        self.queue.clear()
        self.size = 0
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            pass


class Link:
    """One client's connection through the proxy. Pass it as `only=` to confine a fault to it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, address: Address, framing: str
    ) -> None:
        self.address = address  # the client's: what its `getsockname()` says
        self.client, self.server = client, server
        self.to_server = Flow("to_server", framing, client, server)
        self.to_client = Flow("to_client", framing, server, client)
        self.flows = self.to_server, self.to_client

    def __repr__(self) -> str:
        counts = f"{self.to_server.begun} requests, {self.to_client.begun} replies"
        opaque = any(flow.framer.opaque for flow in self.flows)
        return f"<Link {self.address} {counts}{', not in this framing' if opaque else ''}>"


class Relay:
    """Forwards from a free loopback port to `upstream`, and shows each frame to `rules`."""

    def __init__(self, upstream: Address | str, framing: str) -> None:
        self.upstream, self.framing = upstream, framing
        self.changed = threading.Condition()
        self.closed = False
        self.rules: list[Rule] = []
        self.links: dict[Link, None] = {}  # a set that keeps the order of arrival
        self.counts: dict[Way, int] = {"to_server": 0, "to_client": 0}
        self.log: dict[Way, deque[Frame]] = _logs()
        self.unseen: dict[Way, deque[Frame]] = _logs()  # not yet looked at by a waiting test
        self._due = math.inf  # when the next delayed parcel is to be sent
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._selector.register(self._woken, READ)
        # Bound for good and never listening, so that nobody takes the port while we refuse.
        self._reservation = _bound(0)
        self.address: Address = self._reservation.getsockname()
        self._listener: socket.socket | None = None
        self.set_door("open")
        self.thread = threading.Thread(target=self._run, name="FaultProxy", daemon=True)
        _alive.add(self)
        self.thread.start()

    # What the proxy asks for, in the caller's thread.

    def check_open(self) -> None:
        if self.closed:
            raise RuntimeError("this FaultProxy is closed")

    def install(self, rule: Rule) -> None:
        with self.changed:
            self.check_open()
            self.rules.append(rule)

    def lift(self, which: Callable[[Rule], bool]) -> None:
        """Remove rules, and let go what they hold."""
        with self.changed:
            gone = [rule for rule in self.rules if which(rule)]
            self.rules = [rule for rule in self.rules if rule not in gone]
            for flow in self._flows():
                held = [parcel for parcel in flow.queue if parcel.holders]
                for parcel in held:
                    parcel.holders = [rule for rule in parcel.holders if rule not in gone]
                # Some servers drop what they are doing when they see the end (Go's HTTP/2 does),
                # and the request that the test has kept back would never be applied.
                if held and flow.way == "to_server" and flow.queue[-1].end and len(flow.queue) > 1:
                    flow.queue[-1].due = monotonic() + LINGER
            self.settle()

    def parcels(self) -> Iterator[Parcel]:
        return (parcel for flow in self._flows() for parcel in flow.queue)

    def set_door(self, door: Door) -> None:
        """Accept connections, leave them to the kernel, or refuse them."""
        with self.changed:
            if self.closed:
                return
            if door == "shut" and self._listener is not None:
                self._hang_up(self._listener)
                self._listener = None
            elif door != "shut" and self._listener is None:
                self._listener = _bound(self.address[1])
                self._listener.listen(128)
            if self._listener is not None:
                self._watch(self._listener, READ if door == "open" else 0, None)

    def reset_client(self, link: Link) -> None:
        self._hang_up(link.client, reset=True)
        link.to_client.finish()
        if link.to_server.reading:
            self._end(link, link.to_server, "eof")

    def discard(self, link: Link, *, reset: bool = False) -> None:
        self.links.pop(link, None)
        self._hang_up(link.client, reset=reset)
        self._hang_up(link.server, reset=reset)

    def settle(self) -> None:
        """Act on a change made outside the thread, before returning to the one who made it."""
        self._settle(list(self.links))
        self.wake()  # its timeout may have become too long

    def wake(self) -> None:
        try:
            self._waker.send(b"!")
        except OSError:  # full: it will wake anyway; closed: it need not
            pass

    # What the thread does.

    def _run(self) -> None:
        try:
            while True:
                wait = None if self._due == math.inf else max(0, self._due - monotonic())
                ready = self._selector.select(wait)
                with self.changed:
                    if self.closed:
                        return
                    self._serve(ready)
        finally:  # also when a test's predicate raised: pytest reports it, nobody hangs
            with self.changed:
                self.closed = True
                self.let_go()
                self.changed.notify_all()

    def _serve(self, ready: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        touched: dict[Link, None] = {}
        for key, mask in ready:
            if key.fileobj is self._woken:
                self._woken.recv(4096)
            elif self._key(cast(socket.socket, key.fileobj)) is None:
                pass  # closed or paused since
            elif self._listener is not None and key.fileobj is self._listener:
                touched.update(self._accept(self._listener))
            else:
                link, flow = key.data
                touched[link] = None
                if mask & READ and flow.reading:
                    self._read(link, flow)
        if self._due <= monotonic():
            self._due = math.inf
            touched.update(self.links)
        self._settle(touched)

    def _accept(self, listener: socket.socket) -> dict[Link, None]:
        try:
            client, address = listener.accept()
        except OSError:  # it has given up
            return {}
        unix = isinstance(self.upstream, str)
        server = socket.socket(socket.AF_UNIX if unix else _family(self.upstream[0]))
        for sock in (client, server):
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server, address, self.framing)
        self.links[link] = None
        # Linux lets a socket that is still connecting be polled, read and written like any other:
        # not yet is EAGAIN, and a refusal is an error like a reset.
        if server.connect_ex(self.upstream) not in (0, errno.EINPROGRESS):
            self._end(link, link.to_client, "reset")
        return {link: None}

    def _read(self, link: Link, flow: Flow) -> None:
        try:
            data = flow.source.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            # A client's reset becomes an ordinary end: what it has sent is still to be delivered.
            self._end(link, flow, "reset" if flow.way == "to_client" else "eof")
            return
        for frame in flow.framer.feed(data):
            self._pass(link, flow, frame)
        if not data:
            self._end(link, flow, "eof")

    def _end(self, link: Link, flow: Flow, end: Literal["eof", "reset"]) -> None:
        flow.reading = False
        if rest := flow.framer.rest():
            self._pass(link, flow, Frame(rest, "aside"))
        self._pass(link, flow, Frame(b"", "aside"), end)

    def _pass(
        self, link: Link, flow: Flow, frame: Frame, end: Literal["", "eof", "reset"] = ""
    ) -> None:
        """The path of a frame: counted, logged, marked by every rule, queued."""
        if frame.kind == "begin":
            flow.begun += 1
            self.counts[flow.way] += 1
        if frame.data:
            self.log[flow.way].append(frame)
            self.unseen[flow.way].append(frame)
        parcel = Parcel(link, flow.way, frame, frame.stream or flow.begun, monotonic(), end)
        for rule in self.rules:
            if rule.covers(parcel):
                rule.mark(parcel)
        if not parcel.lost and not flow.finished:
            flow.queue.append(parcel)
            flow.size += len(parcel.data)

    def _settle(self, links: Iterable[Link]) -> None:
        now = monotonic()
        for link in links:
            due = [flow.send_due(now) for flow in link.flows]
            if None in due:
                self.discard(link, reset=True)
            elif all(flow.finished for flow in link.flows):
                self.discard(link)
            else:
                self._due = min(self._due, *(moment for moment in due if moment is not None))
                for flow, back in (link.flows, link.flows[::-1]):
                    mask = READ if flow.reading and not flow.full() else 0
                    mask |= WRITE if back.blocked else 0
                    self._watch(flow.source, mask, (link, flow))
        self.changed.notify_all()

    def _watch(self, sock: socket.socket, mask: int, data: tuple[Link, Flow] | None) -> None:
        key = self._key(sock)
        if key is None and mask and sock.fileno() >= 0:
            self._selector.register(sock, mask, data)
        elif key is not None and not mask:
            self._selector.unregister(sock)
        elif key is not None and key.events != mask:
            self._selector.modify(sock, mask, data)

    def _key(self, sock: socket.socket) -> selectors.SelectorKey | None:
        return self._selector.get_map().get(sock) if sock.fileno() >= 0 else None

    def _flows(self) -> Iterator[Flow]:
        return (flow for link in self.links for flow in link.flows)

    def _hang_up(self, sock: socket.socket, *, reset: bool = False) -> None:
        if self._key(sock) is not None:
            self._selector.unregister(sock)
        if reset and sock.fileno() >= 0:
            # Closing with a linger time of 0 sends RST and forgets what is unsent.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    def let_go(self) -> None:
        """Close descriptors and nothing else: a forked child shares the rest with its parent.

        Unregistering, for one, would reach through the shared epoll into the parent.
        """
        for link in self.links:
            link.client.close()
            link.server.close()
        self.links.clear()
        for sock in (self._waker, self._woken, self._reservation, self._listener):
            if sock is not None:
                sock.close()
        self._selector.close()


def _logs() -> dict[Way, deque[Frame]]:
    return {"to_server": deque(maxlen=LOG), "to_client": deque(maxlen=LOG)}


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", port))
    return sock


# Inherited descriptors would keep connections open that the parent has closed, so a child lets go.
_alive: weakref.WeakSet[Relay] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for relay in list(_alive):
        relay.closed = True
        relay.changed = threading.Condition()  # the thread that may have held it is not here
        relay.let_go()


os.register_at_fork(after_in_child=_after_fork_in_child)
