"""The asyncio transport: one connection for everybody, with automatic pipelining.

Contract: `transport.py`. Requests that are made in the same turn of the loop leave in one write;
replies come in the order of the requests, so nothing but a queue of futures is needed. Who is
cancelled or runs out of time leaves its place in that queue behind, and its reply goes nowhere.
Hazard: after a time-out the connection may be a black hole, so nobody new is put on it.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from holdfast.backends.redis.transport import (
    ALONE,
    Answer,
    Batch,
    Hearing,
    Node,
    Subscription,
)
from holdfast.backends.redis.wire import (
    HEARING_OUT,
    NOTHING,
    Address,
    Garbled,
    NoAnswer,
    NotSent,
    Settings,
    new_reader,
    pack,
    show,
    unreachable,
)
from holdfast.errors import Misconfigured
from holdfast.ports.clock import now

__all__ = ["CONNECT", "Link", "LoopTransport"]

CONNECT = 5.0
"""Seconds in which a shared connection is made, or given up."""

MOST_IDLE = 32
"""So many connections that nobody shares are kept for later."""


class Asked(NamedTuple):
    """A request under way."""

    future: asyncio.Future[Any]
    wanted: int
    replies: list[Any]
    deadline: float


class Link(asyncio.Protocol):
    """One connection that many tasks share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, links: set[Link]) -> None:
        self._loop = loop
        self._links = links  # all that are open
        self._reader = new_reader()
        self._pending: deque[Asked] = deque()
        self._outgoing: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._transport: asyncio.Transport | None = None
        self.run_id = ""
        self.usable = True
        self.broken: Exception | None = None

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._links.add(self)
        self.sock = sock = cast(socket.socket, transport.get_extra_info("socket"))
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not NOTHING:
                self.replied(reply)
        except Garbled as error:
            self.broken = error
            self.close()

    def replied(self, reply: Any) -> None:
        if not self._pending:
            return  # nobody asked
        future, count, replies, _ = self._pending[0]
        if count > 1:
            replies.append(reply)
            if len(replies) < count:
                return
            reply = replies
        self._pending.popleft()
        if not future.done():
            future.set_result(reply)
        if not self.usable and not self._pending:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._transport = None
        self._links.discard(self)
        self.broken = exc = exc or self.broken
        reason = f"the connection broke: {exc}" if exc else "the connection was closed"
        for asked in self._pending:
            if not asked.future.done():
                asked.future.set_exception(NoAnswer(reason))
        if self._timer is not None:
            self._timer.cancel()

    @property
    def said(self) -> list[Any]:
        """What has come of the replies that are not complete yet."""
        return self._pending[0].replies if self._pending else []

    # -- requests ---------------------------------------------------------------------------------

    def request(self, data: bytes, count: int, deadline: float) -> asyncio.Future[Any]:
        """Sent at once if the line is idle, else with what others ask in this turn of the loop."""
        if self._transport is None or not self.usable:
            raise NotSent("the connection broke")
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._pending:
            if not self._outgoing:
                self._loop.call_soon(self._flush)
            self._outgoing.append(data)
        else:
            self._transport.write(data)
        self._pending.append(Asked(future, count, [], deadline))
        if deadline < self._timer_at:
            self._look_at(deadline)
        return future

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def _look_at(self, moment: float) -> None:
        """One timer for all: most requests are answered long before it goes off."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(0.0, moment - now()), self._time_out)

    def _time_out(self) -> None:
        moment = now()
        self._timer, self._timer_at = None, math.inf
        soonest = math.inf
        for asked in self._pending:
            if asked.future.done():
                continue
            if asked.deadline <= moment:
                asked.future.set_exception(NoAnswer("no answer in time"))
                self.usable = False
            elif asked.deadline < soonest:
                soonest = asked.deadline
        if not self.usable:
            self.retire()
        if soonest < math.inf:
            self._look_at(soonest)

    def retire(self) -> None:
        """No new requests; closed when those under way are answered, or by their own limits."""
        self.usable = False
        if all(asked.future.done() for asked in self._pending):
            self.close()

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()


class LoopEar(Link):
    """A connection whose replies are messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, links: set[Link], hearing: Hearing) -> None:
        super().__init__(loop, links)
        self._subscription = Subscription(hearing)
        self._listening = False
        self._waiter: asyncio.Future[None] | None = None
        self._rung = False
        self._reason = "the connection broke"

    def replied(self, reply: Any) -> None:
        if not self._listening:
            super().replied(reply)
            return
        confirmed = self._subscription.confirmed
        try:
            self._subscription.hear(reply)
        except NoAnswer as error:
            self._reason = str(error)
            self.close()
        if self._subscription.confirmed > confirmed:
            self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.wake()

    async def subscribe(self, channels: list[str], deadline: float) -> None:
        await self._tell("SUBSCRIBE", channels, deadline)

    async def unsubscribe(self, channels: list[str], deadline: float) -> None:
        await self._tell("UNSUBSCRIBE", channels, deadline)

    async def _tell(self, verb: str, channels: list[str], deadline: float) -> None:
        self._listening = True
        wanted = self._subscription.confirmed + len(channels)
        if self._transport is None:
            raise NoAnswer(self._reason)
        self._transport.write(pack(verb, *channels))
        while self._subscription.confirmed < wanted:
            if now() >= deadline:
                raise NoAnswer("no answer in time")
            await self.listen(deadline)

    async def listen(self, until: float) -> None:
        if self._transport is None:
            raise NoAnswer(self._reason)
        if self._rung:
            self._rung = False
            return
        if self._subscription.is_quiet():
            self._transport.write(pack("PING"))
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, until - now()), self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
            self._rung = False
        if not self.usable:
            raise NoAnswer(self._reason)

    def cut(self) -> None:
        self._reason = "the server is another one by now"
        self.close()

    def wake(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LoopTransport:
    quick = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._alone: dict[Node, list[Link]] = {}
        self._links: set[Link] = set()

    async def ask(
        self, node: Node, data: bytes, count: int, deadline: float, lane: int
    ) -> tuple[Any, str]:
        if lane == ALONE:
            return await self._ask_alone(node, data, count, deadline)
        link: Link | None = node.links[lane]
        if link is None or not link.usable:
            link = await self.link_of(node, lane, deadline)
        try:
            return await link.request(data, count, deadline), link.run_id
        finally:
            if not link.usable:
                link.retire()  # perhaps this was the last one on it

    async def ask_all(self, batches: Sequence[Batch], deadline: float, lane: int) -> list[Answer]:
        async def ask(batch: Batch) -> Answer:
            try:
                return await self.ask(*batch, deadline, lane)
            except (NotSent, NoAnswer, Misconfigured) as error:
                return error

        if len(batches) == 1:
            return [await ask(batches[0])]
        return list(await asyncio.gather(*map(ask, batches)))

    async def _ask_alone(
        self, node: Node, data: bytes, count: int, deadline: float
    ) -> tuple[Any, str]:
        idle = self._alone.setdefault(node, [])
        link = idle.pop() if idle else None
        if link is None or not link.usable:
            link = await self._open(node.address, deadline)
        try:
            answer = await link.request(data, count, deadline), link.run_id
        except BaseException:
            link.close()
            raise
        if len(idle) < MOST_IDLE:
            idle.append(link)
        else:
            link.close()
        return answer

    async def link_of(self, node: Node, lane: int, deadline: float) -> Link:
        """Who needs the connection first opens it; the others wait for the same one."""
        loop, begun = asyncio.get_running_loop(), now()
        opening: asyncio.Task[Link] | None = node.opening[lane]
        if opening is None or opening.done():
            # Not by its own deadline: the others who wait for it may have more time.
            opening = loop.create_task(self._open(node.address, max(deadline, now() + CONNECT)))
            # Its failure is told to whoever waits; perhaps nobody does any more.
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            node.opening[lane] = opening
        await asyncio.wait([opening], timeout=max(0.0, deadline - now()))
        if not opening.done():
            reasons, text = self._settings.reasons, "could not connect in time"
            raise NotSent(reasons.why(str(node), text, begun, deadline))
        if opening.cancelled():
            raise NotSent("the client was closed")
        link = opening.result()
        node.links[lane] = link
        if node.opening[lane] is opening:
            node.opening[lane] = None
        if not link.usable:
            raise NotSent("the connection broke")
        return link

    async def _open(self, address: Address, deadline: float) -> Link:
        link = Link(asyncio.get_running_loop(), self._links)
        await self._greet(link, address, deadline)
        return link

    async def _greet(self, link: Link, address: Address, deadline: float) -> None:
        (host, port), settings = address, self._settings.at(address)
        loop, where, begun = asyncio.get_running_loop(), show(address), now()
        try:
            async with asyncio.timeout(max(0.0, deadline - now())):
                if port:
                    await loop.create_connection(lambda: link, host, port, ssl=settings.tls)
                else:
                    await loop.create_unix_connection(lambda: link, host)
                if where in settings.curt:
                    await asyncio.sleep(HEARING_OUT)
                greeting, count = settings.greeting()
                replies = await link.request(greeting, count, deadline)
            link.run_id = settings.greeted(address, replies)
            settings.curt.discard(where)
            settings.reasons.reached(where)
        except BaseException as error:
            said, broke = link.said, not link.usable
            link.close()
            # TimeoutError is an OSError; and it may have broken before we said anything.
            if isinstance(error, OSError | NoAnswer) or (broke and isinstance(error, NotSent)):
                cause = link.broken or error
                raise unreachable(cause, where, said, settings, begun, deadline) from None
            raise

    async def ear(self, node: Node, hearing: Hearing, deadline: float) -> LoopEar:
        ear = LoopEar(asyncio.get_running_loop(), self._links, hearing)
        await self._greet(ear, node.address, deadline)
        return ear

    async def close(self, nodes: list[Node]) -> None:
        opening = [task for node in nodes for task in node.opening if task is not None]
        for task in opening:
            task.cancel()
        if opening:  # the loop may be closed next
            await asyncio.wait(opening)
        for node in nodes:
            node.links = [None, None]
        self._alone.clear()
        for _ in range(10):  # asyncio closes a socket in the next turn of the loop
            for link in list(self._links):
                link.close()
            if not self._links:
                break
            await asyncio.sleep(0)
