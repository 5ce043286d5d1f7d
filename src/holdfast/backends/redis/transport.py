"""What both transports offer, and a node: one server, as a client sees it.

Contract: every call returns by its deadline, or raises `NotSent` or `NoAnswer`. A connection that
was interrupted or timed out in the middle of an exchange is never used again.
Partners: `threads.py` blocks, `loops.py` suspends; `courier.py` uses either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from holdfast.backends.redis.wire import Address, NoAnswer, show
from holdfast.ports.clock import now

__all__ = [
    "ALONE",
    "ORDINARY",
    "PONG_WITHIN",
    "RENEWALS",
    "Answer",
    "Batch",
    "Ear",
    "Hearing",
    "Node",
    "Subscription",
    "Transport",
    "unheard",
]

ORDINARY, RENEWALS, ALONE = 0, 1, 2
"""Lanes: renewals have a connection of their own, where connections are shared; and what the server
may stall has one for itself."""

PING_EVERY, PONG_WITHIN = 3.0, 2.0
"""An ear that has heard nothing for so long asks whether it is still connected, and waits so long
for the answer."""

Hearing = Callable[[bytes, bytes], None]
"""Called with the channel and the payload of every message, by the transport's thread or loop."""


def unheard(channel: bytes, payload: bytes) -> None:
    """For a connection on which nobody listens."""


class Node:
    """One server: where it is, and the connections to it."""

    __slots__ = ("address", "free", "links", "opening")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.free: deque[Any] = deque()  # threads: connections that nobody uses right now
        self.links: list[Any] = [None, None]  # asyncio: one that everybody shares, for each lane
        self.opening: list[Any] = [None, None]

    def __str__(self) -> str:
        return show(self.address)


class Batch(NamedTuple):
    """Requests to one node."""

    node: Node
    data: bytes
    replies: int


Answer: TypeAlias = tuple[Any, str] | Exception
"""The reply (a list if there were several requests) and who gave it; or why there is none."""


class Ear(Protocol):
    """A connection for one purpose: it listens to channels, or is a link (`presence.py`)."""

    run_id: str
    sock: Any

    def request(self, data: bytes, count: int, deadline: float) -> Awaitable[Any]:
        """Ask something on it, before it listens to anything: the reply, or a list of `count`."""
        ...

    async def subscribe(self, channels: list[str], deadline: float) -> None: ...

    async def unsubscribe(self, channels: list[str], deadline: float) -> None: ...

    async def listen(self, until: float) -> None:
        """Deliver messages until then, or until `wake`. Raises NoAnswer when the line is cut."""
        ...

    def wake(self) -> None:
        """Make `listen` return soon; from any thread, never blocks."""

    def cut(self) -> None:
        """Make it fail as if the line was cut; from any thread."""

    def close(self) -> None: ...


class Subscription:
    """What an ear makes of what it hears, and of silence. Nothing is sent or received here."""

    __slots__ = ("_heard", "_hearing", "_pinged", "confirmed")

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self.confirmed = 0  # channels, that it listens to them or does not any more
        self._heard = 0.0
        self._pinged = 0.0  # when, if it was not answered yet

    def hear(self, reply: Any) -> None:
        """Raises NoAnswer when it is refused."""
        self._heard, self._pinged = now(), 0.0
        if reply == b"PONG":  # RESP3
            return
        if not isinstance(reply, list):
            raise NoAnswer(f"the subscription was refused: {reply}")
        words = cast(list[bytes], reply)
        if words[0] == b"message":
            self._hearing(words[1], words[2])
        elif words[0] in (b"subscribe", b"unsubscribe"):
            self.confirmed += 1

    def is_quiet(self) -> bool:
        """Whether to send a PING: a line that was cut without a word looks quiet. Raises NoAnswer
        when the last one was not answered in time."""
        moment = now()
        if self._pinged:
            if moment - self._pinged > PONG_WITHIN:
                raise NoAnswer("the subscription is silent")
        elif self.confirmed and moment - self._heard > PING_EVERY:
            self._pinged = moment
            return True
        return False


class Transport(Protocol):
    @property
    def quick(self) -> Callable[[Node, bytes, float], tuple[Any, str] | None] | None:
        """Asks for one reply without suspending, where that can be (None: it cannot)."""
        ...

    async def ask(
        self, node: Node, data: bytes, count: int, deadline: float, lane: int
    ) -> tuple[Any, str]:
        """The reply (a list of them if `count` is not 1) and the run_id of who gave it."""
        ...

    async def ask_all(self, batches: Sequence[Batch], deadline: float, lane: int) -> list[Answer]:
        """All at the same time."""
        ...

    async def ear(self, node: Node, hearing: Hearing, deadline: float) -> Ear: ...

    async def close(self, nodes: list[Node]) -> None: ...
