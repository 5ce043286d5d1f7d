"""The asyncio port's transport: one connection to an endpoint carries all calls at once.

Contract: `channel.Transport`. A call that is cancelled or runs out of time is reset on its stream
and disturbs nobody else. If nothing at all was heard meanwhile, the connection is retired: it takes
no new calls, and is closed when those under way have ended. A stream of many messages has a
connection of its own.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence

from holdfast.backends.addresses import one_by_one
from holdfast.backends.etcd.channel import Block, Endpoint
from holdfast.backends.etcd.dial import GREETING, SIGN, STALE, broken, known, unreached
from holdfast.backends.etcd.http2 import NO_ANSWER, Event, Failure, Http2, HttpError
from holdfast.ports import clock

__all__ = ["LoopTransport"]

SILENCE = 0.1
"""A connection that said nothing for so long while it owed an answer is retired."""


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, speaks: bool = True) -> None:
        self.http = Http2()
        self.heard = clock.now()
        self.retired = False
        self.trouble: Exception | None = None
        self._greeted: asyncio.Future[None] | None = None
        self._speaks = speaks  # else the other side begins
        self.lost: Failure | None = None  # why it is gone
        self._transport: asyncio.Transport | None = None
        self._handlers: dict[int, deque[Event]] = {}
        self._wakers: dict[int, asyncio.Future[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.heard = clock.now()
        self._be_greeted()
        try:
            for event in self.http.receive(data):
                inbox = self._handlers.get(event.stream)
                if inbox is not None:
                    inbox.append(event)
                    self.wake(event.stream)
        except HttpError as error:
            self.fail(broken(error))
            return
        self.flush()
        if self.http.closing:
            self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        self.trouble = exc
        self.fail(broken(exc))

    async def greeting(self) -> None:
        """Until the other side said something, or has had the time to."""
        if not self._speaks and self.lost is None:
            loop = asyncio.get_running_loop()
            self._greeted = loop.create_future()
            timer = loop.call_later(GREETING, self._be_greeted)
            try:
                await self._greeted
            finally:
                timer.cancel()
        self.flush()

    @property
    def stale(self) -> bool:
        return not self._handlers and clock.now() - self.heard >= STALE

    async def lives(self, deadline: float) -> bool:
        """Ask for a sign of life, one for all who want to know."""
        if self._greeted is None or self._greeted.done():
            self._greeted = asyncio.get_running_loop().create_future()
            self.http.ping()
            self.flush()
        try:
            async with asyncio.timeout(max(0.0, min(SIGN, deadline - clock.now()))):
                await asyncio.shield(self._greeted)
        except TimeoutError:
            self.retire()
        return not self.retired

    def _be_greeted(self) -> None:
        self._speaks = True
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_result(None)

    def fail(self, why: Failure) -> None:
        self._be_greeted()
        self.lost = self.lost or why
        self.retired = True
        for number in list(self._handlers):
            self._handlers[number].append(Event(number, None, self.lost))
            self.wake(number)
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        self.retired = True
        if not self._handlers and self._transport is not None:
            self._transport.abort()  # not `close`, which waits until all is sent: to nobody, maybe

    def flush(self) -> None:
        if not self._speaks:
            return
        if self.http.out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(bytes(self.http.out))
            self.http.out.clear()

    # -- calls ------------------------------------------------------------------------------------

    def listen(self, number: int) -> deque[Event]:
        inbox = self._handlers[number] = deque()
        if self.lost is not None:
            inbox.append(Event(number, None, self.lost))
        return inbox

    def hang_up(self, number: int) -> None:
        self._handlers.pop(number, None)
        self.http.cancel(number)  # does nothing if it has ended
        self.flush()
        if self.retired:
            self.retire()

    def wake(self, number: int) -> None:
        waker = self._wakers.get(number)
        if waker is not None and not waker.done():
            waker.set_result(None)

    async def pause(self, number: int, deadline: float) -> None:
        """Until something comes for this stream, somebody wakes it, or the deadline."""
        loop = asyncio.get_running_loop()
        waker = self._wakers[number] = loop.create_future()
        left = max(0.0, deadline - clock.now())
        timer = loop.call_later(left, self.wake, number)
        try:
            await waker
        finally:
            timer.cancel()
            self._wakers.pop(number, None)

    async def exchange(self, calls: Sequence[Block], deadline: float) -> list[bytes | Failure]:
        begun = clock.now()
        numbers: list[int] = []
        try:
            for headers, message in calls:
                number = self.http.begin(headers, message)
                numbers.append(number)
                self.listen(number)
            self.flush()
            return [await self._answer(number, begun, deadline) for number in numbers]
        finally:
            for number in numbers:
                self.hang_up(number)

    async def _answer(self, number: int, begun: float, deadline: float) -> bytes | Failure:
        inbox = self._handlers[number]
        answer: bytes | None = None
        while True:
            while inbox:
                _, message, failure = inbox.popleft()
                if message is not None:
                    answer = message
                elif failure is not None:
                    return failure
                elif answer is None:
                    return Failure(NO_ANSWER, "an answer without a message")
                else:
                    return answer
            now = clock.now()
            if now >= deadline:
                if self.heard <= begun and now - begun >= SILENCE:
                    self.retired = True
                return Failure(NO_ANSWER, "it did not answer in time")
            await self.pause(number, deadline)


async def _dial(endpoint: Endpoint, deadline: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    trouble: OSError = OSError("it has no address")
    found = known(endpoint.host, endpoint.port) or await loop.getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM
    )
    for (family, kind, protocol, _, address), seconds in one_by_one(found, deadline):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(seconds):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            trouble = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise trouble


class LoopTransport:
    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._links: dict[Endpoint, _Link] = {}
        self._connecting: dict[Endpoint, tuple[asyncio.Task[_Link | Failure], float]] = {}
        self._streams: set[_Link] = set()

    async def exchange(
        self, endpoint: Endpoint, calls: Sequence[Block], deadline: float, apart: bool
    ) -> list[bytes | Failure]:
        link = self._links.get(endpoint)  # shared by all: nobody stands in line
        if link is None or link.retired or (link.stale and not await link.lives(deadline)):
            connected = await self._shared(endpoint, deadline)
            if isinstance(connected, Failure):
                return [connected] * len(calls)
            link = connected
        return await link.exchange(calls, deadline)

    async def _shared(self, endpoint: Endpoint, deadline: float) -> _Link | Failure:
        """The connection for all: one is made, however many ask for it; who is cancelled leaves it
        to the others."""
        loop = asyncio.get_running_loop()
        while True:
            task, limit = self._connecting.get(endpoint, (None, 0.0))
            if task is None or task.done():
                limit = deadline
                task = loop.create_task(self._make_shared(endpoint, deadline))
                self._connecting[endpoint] = task, deadline
            try:
                async with asyncio.timeout(max(0.0, deadline - clock.now())):
                    link = await asyncio.shield(task)
            except TimeoutError:
                return unreached(str(endpoint), TimeoutError())
            except asyncio.CancelledError:
                # By close(), perhaps. At the end of a loop both are cancelled: then we must end.
                current = asyncio.current_task()
                if task.cancelled() and not (current and current.cancelling()):
                    return Failure(NO_ANSWER, "the client was closed", applied=False)
                raise
            # Who began it may have had less time than we have.
            if not isinstance(link, Failure) or not limit <= clock.now() < deadline:
                return link

    async def _make_shared(self, endpoint: Endpoint, deadline: float) -> _Link | Failure:
        link = await self._connect(endpoint, deadline)
        if not isinstance(link, Failure):
            old = self._links.get(endpoint)
            self._links[endpoint] = link
            if old is not None:
                old.retire()
        return link

    async def _connect(self, endpoint: Endpoint, deadline: float) -> _Link | Failure:
        loop, tls = asyncio.get_running_loop(), self._tls
        link: _Link | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - clock.now())):
                sock = await _dial(endpoint, deadline)
                _, link = await loop.create_connection(
                    lambda: _Link(speaks=tls is None),
                    sock=sock,
                    ssl=tls,
                    server_hostname=endpoint.host if tls else None,
                )
                await link.greeting()
        except BaseException as error:
            if link is not None:
                link.fail(Failure(NO_ANSWER, "it was given up"))
            if isinstance(error, OSError):
                return unreached(str(endpoint), error)
            raise
        return unreached(str(endpoint), link.trouble) if link.lost else link

    async def stream(
        self, endpoint: Endpoint, headers: bytes, deadline: float
    ) -> LoopStream | Failure:
        link = await self._connect(endpoint, deadline)
        if isinstance(link, Failure):
            return link
        self._streams.add(link)
        return LoopStream(link, headers, self._streams)

    async def close(self) -> None:
        for task, _ in self._connecting.values():
            task.cancel()
        for link in [*self._links.values(), *self._streams]:
            link.fail(Failure(NO_ANSWER, "the client was closed"))
        self._links.clear()
        self._streams.clear()


class LoopStream:
    def __init__(self, link: _Link, headers: bytes, owner: set[_Link]) -> None:
        self._link = link
        self._owner = owner
        self._number = link.http.begin(headers, None)
        self._inbox = link.listen(self._number)
        link.flush()

    @property
    def heard(self) -> float:
        return self._link.heard

    def send(self, message: bytes) -> None:
        self._link.http.send(self._number, message)
        self._link.flush()

    def ping(self) -> None:
        self._link.http.ping()
        self._link.flush()

    def nudge(self) -> None:
        self._link.wake(self._number)

    async def receive(self, deadline: float) -> bytes | Failure | None:
        if not self._inbox:
            if self._link.http.closing:
                return Failure(NO_ANSWER, "the server is going away")
            await self._link.pause(self._number, deadline)
        if not self._inbox:
            return None
        _, message, failure = self._inbox.popleft()
        if message is not None:
            return message
        return failure or Failure(NO_ANSWER, "the stream has ended")

    async def close(self) -> None:
        self._owner.discard(self._link)
        self._link.fail(Failure(NO_ANSWER, "the stream was closed"))
