"""Where the servers are: one, the master that the sentinels name, or a cluster's masters.

Contract: `node(slot)` says at once who serves a slot, or None when that must be found out first;
`find` asks. `failed` is called after every failure, and makes the next request ask again where the
master may have changed. Partner: `courier.py`, which follows redirections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from holdfast.backends.redis.keys import SLOTS
from holdfast.backends.redis.transport import ORDINARY, Node, Transport
from holdfast.backends.redis.wire import Address, NoAnswer, NotSent, ReplyError, pack, show
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["Cluster", "Fleet", "Sentinel", "Single"]


class Fleet(Protocol):
    counts_listeners: bool
    """Whether PUBLISH tells how many hear it: not in a cluster, where they may be elsewhere."""

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
    counts_listeners = True

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._node = self.at(address)

    def node(self, slot: int) -> Node:
        return self._node

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node:
        return self._node

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        return [self._node]

    def failed(self, node: Node) -> None:
        pass


class Sentinel(_Nodes):
    counts_listeners = True

    def __init__(self, sentinels: Sequence[Address], master: str, transport: Transport) -> None:
        super().__init__()
        self._sentinels = [Node(address) for address in sentinels]
        self._master = master
        self._asking = transport
        self._node: Node | None = None

    def node(self, slot: int) -> Node | None:
        return self._node

    def failed(self, node: Node) -> None:
        if self._node is node:
            self._node = None

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        return [self._node or await self.find(transport, 0, deadline)]

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node:
        question = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._master)
        heard: list[str] = []
        for sentinel in list(self._sentinels):
            try:
                reply, _ = await self._asking.ask(sentinel, question, 1, deadline, ORDINARY)
            except (NotSent, NoAnswer) as error:
                heard.append(f"{sentinel}: {error}")
                self._sentinels.remove(sentinel)  # the next time it is asked last
                self._sentinels.append(sentinel)
                continue
            if isinstance(reply, list):
                host, port = cast(list[bytes], reply)
                self._node = self.at((host.decode(), int(port)))
                return self._node
            heard.append(f"{sentinel}: {reply or f'knows no master {self._master!r}'}")
        raise Unavailable(f"no sentinel names a master ({'; '.join(heard)})")

    async def close(self) -> None:
        await self._asking.close(self._sentinels)


class Cluster(_Nodes):
    counts_listeners = False

    def __init__(self, addresses: Sequence[Address]) -> None:
        super().__init__()
        self._seeds = [self.at(address) for address in addresses]
        self._slots: list[Node | None] = [None] * SLOTS

    def node(self, slot: int) -> Node | None:
        return self._slots[slot]

    def failed(self, node: Node) -> None:
        """Somebody else may serve its slots by now: ask again."""
        self._slots = [None if owner is node else owner for owner in self._slots]
        self._seeds.sort(key=lambda seed: seed is node)

    def moved(self, slot: int, address: Address) -> Node:
        node = self._slots[slot] = self.at(address)
        return node

    async def masters(self, transport: Transport, deadline: float) -> list[Node]:
        await self.find(transport, 0, deadline)
        return list({id(node): node for node in self._slots if node is not None}.values())

    async def find(self, transport: Transport, slot: int, deadline: float) -> Node:
        heard: list[str] = []
        for node in self._candidates():
            try:
                ranges, _ = await transport.ask(
                    node, pack("CLUSTER", "SLOTS"), 1, deadline, ORDINARY
                )
            except (NotSent, NoAnswer) as error:
                heard.append(f"{node}: {error}")
                continue
            if isinstance(ranges, ReplyError):
                raise Misconfigured(f"{node} is no part of a Redis Cluster ({ranges})")
            self._learn(node, ranges)
            found = self._slots[slot]
            if found is not None:
                return found
            heard.append(f"{node}: nobody serves slot {slot}")
        raise Unavailable(f"the cluster cannot be reached ({'; '.join(heard)})")

    def _candidates(self) -> list[Node]:
        others = [node for node in self.known() if node not in self._seeds]
        return [*self._seeds, *others]

    def _learn(self, teller: Node, ranges: Any) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in ranges:
            # An empty host means: where you asked me.
            owner = self.at((host.decode() or teller.address[0], port))
            slots[first : last + 1] = [owner] * (last - first + 1)
        self._slots = slots
