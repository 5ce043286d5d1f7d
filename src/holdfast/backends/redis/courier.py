"""Takes a request to whoever serves it, and brings back the answer.

Contract: runs a script by its hash and, where the server has forgotten it, by its text; follows
MOVED and ASK. An answer is a reply that is no error. No answer is `NoAnswer`; what surely was not
applied is `Unavailable`, or `Misconfigured` when trying again will not help.
Partners: `fleet.py` knows where, `transport.py` how.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.backends.addresses import share
from holdfast.backends.redis.fleet import Fleet
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.transport import (
    ALONE,
    ORDINARY,
    Batch,
    Ear,
    Hearing,
    Node,
    Transport,
    unheard,
)
from holdfast.backends.redis.wire import NoAnswer, NotSent, ReplyError, pack, trouble
from holdfast.errors import Unavailable
from holdfast.ports.clock import now

__all__ = ["Courier", "Replicas"]

T = TypeVar("T")

HOPS = 8
"""A request is redirected at most so often."""

ASKING = pack("ASKING")


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas must confirm, and how long they have."""

    count: int
    patience: float

    def packed(self, deadline: float) -> bytes:
        """As a command, whose answer still comes in time."""
        left = min(self.patience, 0.5 * (deadline - now()))  # it may have to connect first
        return pack("WAIT", str(self.count), str(max(1, round(left * 1000))))

    def shortfall(self, confirmed: object) -> NoAnswer:
        return NoAnswer(f"only {confirmed} of {self.count} replicas confirmed it")


class Route:
    """Where one request goes, and what is said there."""

    def __init__(self, fleet: Fleet, node: Node, slot: int, data: bytes, full: bytes) -> None:
        self._fleet, self._slot, self._full = fleet, slot, full
        self.node, self.data, self.replies = node, data, 1

    def redirected(self, error: ReplyError) -> bool:
        """Whether this error says where to go, or what to say; then that is what we have here."""
        code, _, detail = str(error).partition(" ")
        if code == "NOSCRIPT":
            self.data, self.replies = self._full, 1
            return True
        if code not in ("MOVED", "ASK"):
            return False
        host, _, port = detail.partition(" ")[2].rpartition(":")
        address = host if host not in ("", "?") else self.node.address[0], int(port)
        if code == "MOVED":
            self.node, self.data, self.replies = (
                self._fleet.moved(self._slot, address), self._full, 1,
            )  # fmt: skip
        else:
            self.node, self.data, self.replies = (
                self._fleet.other(address), ASKING + self._full, 2,
            )  # fmt: skip
        return True


class Courier:
    def __init__(self, fleet: Fleet, transport: Transport) -> None:
        self.fleet = fleet
        self._transport = transport
        self._quick = transport.quick
        self._ear: Ear | None = None

    async def call(
        self, script: Script, rest: bytes, slot: int, deadline: float
    ) -> tuple[Any, str]:
        """Run a script; its reply, and the run_id of the server that gave it."""
        node = self.fleet.node(slot)
        if node is None:
            node = await self.fleet.find(self._transport, slot, deadline)
        data = script.head + rest
        quick = self._quick
        try:
            answer = None if quick is None else quick(node, data, deadline)
            if answer is None:  # then nothing was applied
                answer = await self._transport.ask(node, data, 1, deadline, ORDINARY)
        except NotSent as error:
            raise self._unreachable(node, error) from None
        except NoAnswer:
            self.fleet.failed(node)
            raise
        if isinstance(answer[0], ReplyError):
            return await self._insist(node, script, rest, slot, answer[0], deadline)
        return answer

    async def call_many(
        self,
        script: Script,
        requests: Sequence[tuple[bytes, int]],
        deadline: float,
        lane: int,
        replicas: Replicas | None = None,
    ) -> list[tuple[Any, str]]:
        """Run a script many times, in one batch for each server: as `call`, except that an error
        stands in the place of a reply."""
        places_of: dict[Node, list[int]] = {}
        replies: list[tuple[Any, str]] = [(None, "")] * len(requests)
        lost: Unavailable | None = None
        for place, (_, slot) in enumerate(requests):
            node = self.fleet.node(slot)
            if node is None and lost is None:
                try:
                    node = await self.fleet.find(self._transport, slot, share(deadline, 2))
                except Unavailable as error:  # but who serves the others is known, perhaps
                    lost = error
            if node is None:
                replies[place] = lost, ""
            else:
                places_of.setdefault(node, []).append(place)
        for head in (script.head, script.full):
            missing: dict[Node, list[int]] = {}
            batches = [
                Batch(node, _joined(head, script, [requests[at] for at in places]), len(places))
                for node, places in places_of.items()
            ]
            for batch, answer in zip(
                batches, await self._ask_all(batches, replicas, deadline, lane), strict=True
            ):
                places = places_of[batch.node]
                if isinstance(answer, Exception):
                    for place in places:
                        replies[place] = answer, ""
                    continue
                said, run_id = answer
                for place, reply in zip(places, said, strict=True):
                    replies[place] = reply, run_id
                    if not isinstance(reply, ReplyError):
                        continue
                    if head is script.head and str(reply).startswith("NOSCRIPT"):
                        missing.setdefault(batch.node, []).append(place)
                    else:
                        replies[place] = await self._insisted(
                            batch.node, script, requests[place], reply, replicas, deadline
                        )
            if not missing:
                break
            places_of = missing  # once more as one batch, whose first request brings the script
        return replies

    async def _ask_all(
        self, batches: list[Batch], replicas: Replicas | None, deadline: float, lane: int
    ) -> list[tuple[list[Any], str] | Exception]:
        """The answers to each batch. With replicas they count only if enough confirm them."""
        if replicas is not None:
            tail, lane = replicas.packed(deadline), ALONE  # WAIT stalls what is behind it
            batches = [Batch(node, data + tail, count + 1) for node, data, count in batches]
        found: list[tuple[list[Any], str] | Exception] = []
        for batch, answer in zip(
            batches, await self._transport.ask_all(batches, deadline, lane), strict=True
        ):
            if isinstance(answer, Exception):
                self.fleet.failed(batch.node)
                if isinstance(answer, NotSent):
                    answer = self._unreachable(batch.node, answer)
                found.append(answer)
                continue
            reply, run_id = answer
            if batch.replies == 1:
                reply = [reply]
            if replicas is not None:
                *reply, confirmed = reply
                if not isinstance(confirmed, int) or confirmed < replicas.count:
                    found.append(replicas.shortfall(confirmed))
                    continue
            found.append((reply, run_id))
        return found

    async def _insisted(
        self,
        node: Node,
        script: Script,
        request: tuple[bytes, int],
        error: ReplyError,
        replicas: Replicas | None,
        deadline: float,
    ) -> tuple[Any, str]:
        """One of many was refused: its reply after all, or the trouble."""
        rest, slot = request
        try:
            if replicas is None:
                return await self._insist(node, script, rest, slot, error, deadline)
            reply, run_id, count = await self.call_and_wait(script, rest, slot, replicas, deadline)
        except (NoAnswer, Unavailable) as trouble:
            return trouble, ""
        return (reply if count >= replicas.count else replicas.shortfall(count)), run_id

    async def call_and_wait(
        self, script: Script, rest: bytes, slot: int, replicas: Replicas, deadline: float
    ) -> tuple[Any, str, int]:
        """Run a script, and have replicas confirm it; how many did."""
        node = self.fleet.node(slot)
        if node is None:
            node = await self.fleet.find(self._transport, slot, deadline)
        route = Route(self.fleet, node, slot, script.head + rest, script.full + rest)
        for _ in range(HOPS):
            data = route.data + replicas.packed(deadline)
            # On a connection of its own: WAIT stalls what is behind it.
            answer, run_id = await self._ask(route.node, data, route.replies + 1, deadline, ALONE)
            *_, reply, count = answer
            if not isinstance(reply, ReplyError):
                return reply, run_id, count if isinstance(count, int) else 0
            if not route.redirected(reply):
                raise self.refused(route.node, reply)
        raise Unavailable(f"Redis redirected a request {HOPS} times")

    async def command(self, node: Node, data: bytes, deadline: float) -> Any:
        """Any command, at one node."""
        reply, _ = await self._ask(node, data, 1, deadline, ORDINARY)
        if isinstance(reply, ReplyError):
            raise self.refused(node, reply)
        return reply

    async def read(self, ask: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """For requests that change nothing: a connection that had died meanwhile is no reason to
        fail, so they are asked once more."""
        try:
            try:
                return await ask()
            except NoAnswer:
                if now() >= deadline:
                    raise
                return await ask()
        except NoAnswer as error:
            raise Unavailable(f"Redis did not answer: {error}") from None

    async def masters(self, deadline: float) -> list[Node]:
        return await self.fleet.masters(self._transport, deadline)

    async def ear(self, hearing: Hearing, deadline: float) -> Ear:
        """A connection for messages, to a server that all messages reach."""
        nodes = await self.fleet.listening(self._transport, deadline)
        for number, node in enumerate(nodes, 1):
            limit = share(deadline, len(nodes) - number + 1)
            try:
                ear = self._ear = await self._transport.ear(node, hearing, limit)
                return ear
            except NotSent as error:
                trouble = self._unreachable(node, error)
                if number == len(nodes):
                    raise trouble from None
        raise Unavailable("no server is known")

    async def line(self, slot: int, deadline: float) -> tuple[Node, Ear]:
        """A connection of one's own, to whoever serves this slot."""
        node = self.fleet.node(slot) or await self.fleet.find(self._transport, slot, deadline)
        return node, await self.line_to(node, deadline)

    async def line_to(self, node: Node, deadline: float) -> Ear:
        try:
            return await self._transport.ear(node, unheard, deadline)
        except NotSent as error:
            raise self._unreachable(node, error) from None

    def met(self, run_id: str) -> None:
        """This server has answered about a line. Where it is the only one and we listen to another
        one, a failover has left our ear behind: its calls would go to nobody."""
        ear = self._ear
        if (
            ear is not None
            and not self.fleet.sharded
            and run_id
            and ear.run_id
            and run_id != ear.run_id
        ):
            self._ear = None
            ear.cut()

    async def close(self) -> None:
        await self._transport.close(self.fleet.known())
        await self.fleet.close()

    async def _ask(
        self, node: Node, data: bytes, count: int, deadline: float, lane: int
    ) -> tuple[Any, str]:
        try:
            return await self._transport.ask(node, data, count, deadline, lane)
        except NotSent as error:
            raise self._unreachable(node, error) from None
        except NoAnswer:
            self.fleet.failed(node)
            raise

    def _unreachable(self, node: Node, error: NotSent) -> Unavailable:
        self.fleet.failed(node)
        return Unavailable(f"Redis at {node} cannot be reached: {error}")

    async def _insist(
        self, node: Node, script: Script, rest: bytes, slot: int, error: Any, deadline: float
    ) -> tuple[Any, str]:
        """The script is not there, or the slot is not: try where it is."""
        full = script.full + rest
        route = Route(self.fleet, node, slot, full, full)
        for _ in range(HOPS):
            if not route.redirected(error):
                raise self.refused(route.node, error)
            answer, run_id = await self._ask(
                route.node, route.data, route.replies, deadline, ORDINARY
            )
            error = answer[-1] if route.replies > 1 else answer
            if not isinstance(error, ReplyError):
                return error, run_id
        raise Unavailable(f"Redis redirected a request {HOPS} times: {error}")

    def refused(self, node: Node, error: ReplyError) -> Exception:
        """What an error means: READONLY, LOADING, CLUSTERDOWN, OOM, NOPERM and so on."""
        self.fleet.failed(node)
        meaning = trouble(error, str(node))
        return NoAnswer(str(error)) if meaning is None else meaning


def _joined(head: bytes, script: Script, requests: Sequence[tuple[bytes, int]]) -> bytes:
    """One after another, the first with this head."""
    (first, _), *others = requests
    return head + first + b"".join(script.head + rest for rest, _ in others)
