"""The blocking transport: a pool of plain sockets, each used by one thread at a time.

Contract: `transport.py`. Nothing here suspends. Taking a connection is one atomic `deque.pop`, and
so is giving it back: no lock to be interrupted under. An exchange that did not come to its end
closes its socket. Partner: `sockets.py`.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from holdfast.backends.addresses import share
from holdfast.backends.quiet import Bell, milliseconds
from holdfast.backends.redis.sockets import Wire, connect
from holdfast.backends.redis.transport import (
    PONG_WITHIN,
    Answer,
    Batch,
    Hearing,
    Node,
    Subscription,
)
from holdfast.backends.redis.wire import NOTHING, NoAnswer, NotSent, Settings, TooLate, pack
from holdfast.errors import Misconfigured
from holdfast.ports.clock import now

__all__ = ["ThreadTransport"]

IDLE = 1.0
"""After so many seconds a pooled connection is looked at before it is used: it may be dead."""

BRIEF = 0.2
"""A connection that did not answer in so short a time may be healthy, and so may the others."""

MOST_IDLE = 32
"""So many connections to a server are kept for later."""


class ThreadEar:
    """Listens in a thread of the caller's."""

    def __init__(self, wire: Wire, hearing: Hearing) -> None:
        self.run_id = wire.run_id
        self.sock = wire.sock
        self._wire = wire
        self._subscription = Subscription(hearing)
        self._bell = Bell()
        self._poll = select.poll()
        self._poll.register(wire.sock.fileno(), select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)

    async def request(self, data: bytes, count: int, deadline: float) -> Any:
        self._wire.send(data, deadline)
        replies = [self._wire.reply(deadline) for _ in range(count)]
        return replies if count > 1 else replies[0]

    async def subscribe(self, channels: list[str], deadline: float) -> None:
        self._tell("SUBSCRIBE", channels, deadline)

    async def unsubscribe(self, channels: list[str], deadline: float) -> None:
        self._tell("UNSUBSCRIBE", channels, deadline)

    def _tell(self, verb: str, channels: list[str], deadline: float) -> None:
        subscription = self._subscription
        wanted = subscription.confirmed + len(channels)
        self._wire.send(pack(verb, *channels), deadline)
        while subscription.confirmed < wanted:
            subscription.hear(self._wire.reply(deadline))

    async def listen(self, until: float) -> None:
        wire = self._wire
        over = False
        while True:
            while (reply := wire._gets()) is not NOTHING:
                self._subscription.hear(reply)
            if over:
                return
            if isinstance(wire.sock, ssl.SSLSocket) and wire.sock.pending():
                wire.receive(now() + 1)
                continue
            if self._subscription.is_quiet():
                wire.send(pack("PING"), now() + PONG_WITHIN)
            ready = self._poll.poll(milliseconds(until))
            if not ready:
                return
            for fd, _ in ready:
                if fd == self._bell.fileno():
                    self._bell.hush()
                    return
            over = now() >= until  # there may be something to hear without end
            wire.receive(now() + 1)

    def cut(self) -> None:
        try:
            self._wire.sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            pass

    def wake(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        self._wire.close()
        self._bell.close()


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
        wire.used = moment
        try:
            reply = wire.quick(data, deadline)
        except NotSent:  # it had died in the pool, and the request with it
            self._discard(node, wire)
            return None
        except BaseException as error:
            self._discard(node, wire, error)
            raise
        free.append(wire)
        return reply, wire.run_id

    async def ask(
        self, node: Node, data: bytes, count: int, deadline: float, lane: int
    ) -> tuple[Any, str]:
        wire = self._send(node, data, deadline)
        return self._replies(node, wire, count, deadline), wire.run_id

    def _send(self, node: Node, data: bytes, deadline: float) -> Wire:
        """The connection on which it was sent."""
        try:
            wire: Wire = node.free.pop()
        except IndexError:
            wire = connect(node.address, self._settings, deadline)
        else:
            try:
                moment = now()
                if moment - wire.used <= IDLE or not wire.looks_dead():
                    wire.used = moment
                    wire.send(data, deadline)
                    return wire
            except NotSent:  # it had died in the pool, and the request with it
                pass
            except BaseException:
                self._discard(node, wire)
                raise
            self._discard(node, wire)
            wire = connect(node.address, self._settings, deadline)
        try:
            wire.send(data, deadline)
        except BaseException:
            self._discard(node, wire)
            raise
        return wire

    def _replies(self, node: Node, wire: Wire, count: int, deadline: float) -> Any:
        try:
            if count == 1:
                reply = wire.reply(deadline)
            else:
                reply = [wire.reply(deadline) for _ in range(count)]
        except BaseException as error:
            self._discard(node, wire, error)
            raise
        wire.used = now()
        if len(node.free) < MOST_IDLE:
            node.free.append(wire)
        else:
            wire.close()
        return reply

    async def ask_all(self, batches: Sequence[Batch], deadline: float, lane: int) -> list[Answer]:
        """Everything is sent before anything is read: a server that hangs delays nobody else's
        batch. Who has a connection goes first, for making one may take all the time there is."""
        if len(batches) == 1:
            try:
                return [await self.ask(*batches[0], deadline, lane)]
            except (NotSent, NoAnswer, Misconfigured) as error:
                return [error]
        order = sorted(range(len(batches)), key=lambda place: not batches[place].node.free)
        answers: list[Answer] = [NotSent("not asked")] * len(batches)
        sent: list[tuple[int, Wire]] = []
        try:
            for number, place in enumerate(order):
                node, data, _ = batches[place]
                limit = deadline if node.free else share(deadline, len(order) - number + 1)
                try:
                    sent.append((place, self._send(node, data, limit)))
                except (NotSent, NoAnswer, Misconfigured) as error:
                    answers[place] = error
            while sent:
                place, wire = sent.pop(0)
                node, _, count = batches[place]
                try:
                    answers[place] = self._replies(node, wire, count, deadline), wire.run_id
                except (NotSent, NoAnswer) as error:
                    answers[place] = error
        finally:
            for place, wire in sent:  # interrupted: nobody reads these any more
                self._discard(batches[place].node, wire)
        return answers

    def _discard(self, node: Node, wire: Wire, error: BaseException | None = None) -> None:
        """It failed; those that wait in the pool to the same server are not better, unless it was
        only that somebody had little time."""
        wire.close()
        if isinstance(error, TooLate) and now() - wire.used < BRIEF:
            return
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
