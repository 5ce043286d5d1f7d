"""Where the servers are: one, the master that the sentinels name, or a cluster's masters.

Contract: `node(slot)` says at once who serves a slot, or None when that must be found out first;
`find` asks. `failed` is called after every failure, and makes the next request ask again where the
master may have changed. Who is asked has a share of the time: one that hangs must not keep us from
asking the others. Partner: `courier.py`, which follows redirections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from holdfast.backends.addresses import share
from holdfast.backends.redis.keys import SLOTS
from holdfast.backends.redis.transport import ORDINARY, Node, Transport
from holdfast.backends.redis.wire import (
    Address,
    NoAnswer,
    NotSent,
    ReplyError,
    pack,
    show,
    trouble,
)
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = ["Cluster", "Fleet", "Sentinel", "Single"]


class Fleet(Protocol):
    sharded: bool
    """Whether it is a cluster: each lock is on one of several servers. There PUBLISH does not tell
    how many hear it, for they may be elsewhere."""

    def node(self, slot: int) -> Node | None: ...

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node: ...

    def failed(self, node: Node) -> None: ...

    def moved(self, slot: int, address: Address) -> Node:
        """Somebody else serves this slot from now on."""
        ...

    def other(self, address: Address) -> Node:
        """Somebody else is to be asked this once."""
        ...

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        """All who keep locks."""
        ...

    async def listening(self, transport: Transport, deadline: float) -> list[Node]:
        """Whom all messages reach, the best first."""
        ...

    def known(self) -> list[Node]:
        """Whoever a connection may have been made to."""
        ...

    async def close(self) -> None: ...


class _Nodes:
    """One object for each address, for ever: connections are kept with it."""

    def __init__(self) -> None:
        self._nodes: dict[Address, Node] = {}

    def at(self, address: Address) -> Node:
        return self._nodes.setdefault(address, Node(address))

    def known(self) -> list[Node]:
        return list(self._nodes.values())

    def moved(self, slot: int, address: Address) -> Node:
        raise Misconfigured(
            f"{show(address)} serves a part of a Redis Cluster: use redis+cluster:// for it"
        )

    def other(self, address: Address) -> Node:
        return self.at(address)

    async def close(self) -> None:
        pass


class Single(_Nodes):
    sharded = False

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._node = self.at(address)

    def node(self, slot: int) -> Node:
        return self._node

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node:
        return self._node

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        return [self._node]

    listening = masters

    def failed(self, node: Node) -> None:
        pass


class Sentinel(_Nodes):
    sharded = False

    def __init__(self, sentinels: Sequence[Address], master: str, transport: Transport) -> None:
        super().__init__()
        self._sentinels = tuple(Node(address) for address in sentinels)
        self._master = master
        self._asking = transport
        self._node: Node | None = None

    def node(self, slot: int) -> Node | None:
        return self._node

    def failed(self, node: Node) -> None:
        if self._node is node:
            self._node = None
            self._ask_last(self._sentinels[0])  # it may be cut off, and name a master of old

    def _ask_last(self, sentinel: Node) -> None:
        others = tuple(other for other in self._sentinels if other is not sentinel)
        self._sentinels = (*others, sentinel)  # one assignment: threads may be here at once

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        return [self._node or await self.find(transport, 0, deadline)]

    listening = masters

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node:
        question = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._master)
        heard: list[str] = []
        asked = self._sentinels
        for number, sentinel in enumerate(asked):
            limit = share(deadline, len(asked) - number + 1)  # and one for the master itself
            try:
                reply, _ = await self._asking.ask(sentinel, question, 1, limit, ORDINARY)
            except (NotSent, NoAnswer) as error:
                heard.append(f"{sentinel}: {error}")
                self._ask_last(sentinel)
                continue
            if isinstance(reply, list):
                host, port = cast(list[bytes], reply)
                node = self._node = self.at((host.decode(), int(port)))
                return node
            heard.append(f"{sentinel}: {reply or f'knows no master {self._master!r}'}")
        raise Unavailable(f"no sentinel names a master ({'; '.join(heard)})")

    async def close(self) -> None:
        await self._asking.close(list(self._sentinels))


class Cluster(_Nodes):
    sharded = True

    def __init__(self, addresses: Sequence[Address]) -> None:
        super().__init__()
        self._failed: Node | None = None  # the last one: it is asked last
        for address in addresses:
            self.at(address)
        self._slots: list[Node | None] = [None] * SLOTS

    def node(self, slot: int) -> Node | None:
        return self._slots[slot]

    def failed(self, node: Node) -> None:
        """Somebody else may serve its slots by now: ask again, and not this one first."""
        self._slots = [None if owner is node else owner for owner in self._slots]
        self._failed = node

    def moved(self, slot: int, address: Address) -> Node:
        node = self._slots[slot] = self.at(address)
        return node

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        await self._ask(transport, None, deadline)
        return list({id(node): node for node in self._slots if node is not None}.values())

    async def listening(self, transport: Transport, deadline: float) -> list[Node]:
        """Anybody: the nodes pass messages on to one another."""
        return self._candidates()

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node:
        return await self._ask(transport, slot, deadline)

    async def _ask(self, transport: Transport, slot: int | None, deadline: float) -> Node:
        """Who serves the slot (None: whoever answers), by the table of the first who answers."""
        heard: list[str] = []
        candidates = self._candidates()
        for number, node in enumerate(candidates):
            limit = share(deadline, len(candidates) - number + 1)  # one for the request itself
            try:
                ranges, _ = await transport.ask(node, pack("CLUSTER", "SLOTS"), 1, limit, ORDINARY)
            except (NotSent, NoAnswer) as error:
                heard.append(f"{node}: {error}")
                self._failed = node
                continue
            if isinstance(ranges, ReplyError):
                meaning = _no_cluster(node, ranges)
                if isinstance(meaning, Misconfigured):
                    raise meaning
                heard.append(f"{node}: {ranges}")
                continue
            self._learn(node, ranges)
            found = node if slot is None else self._slots[slot]
            if found is not None:
                return found
            heard.append(f"{node}: nobody serves slot {slot}")
        raise Unavailable(f"the cluster cannot be reached ({'; '.join(heard)})")

    def _candidates(self) -> list[Node]:
        """Everybody, in the order in which we heard of them."""
        return sorted(self.known(), key=lambda node: node is self._failed)

    def _learn(self, teller: Node, ranges: Any) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in ranges:
            # An empty host means: where you asked me.
            name = host.decode() if host else ""
            owner = self.at((name if name not in ("", "?") else teller.address[0], port))
            slots[first : last + 1] = [owner] * (last - first + 1)
        self._slots = slots


def _no_cluster(node: Node, error: ReplyError) -> HoldfastError | None:
    if "cluster support disabled" in str(error):
        return Misconfigured(f"{node} is no part of a Redis Cluster: use redis:// for it")
    return trouble(error, str(node))
