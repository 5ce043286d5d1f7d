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

from holdfast.backends.redis.fleet import Fleet
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.transport import ORDINARY, Ear, Hearing, Node, Transport
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

    @property
    def packed(self) -> bytes:
        return pack("WAIT", str(self.count), str(max(1, round(self.patience * 1000))))


class Courier:
    def __init__(self, fleet: Fleet, transport: Transport) -> None:
        self.fleet = fleet
        self._transport = transport
        self._quick = transport.quick

    def call_now(
        self, script: Script, rest: bytes, slot: int, deadline: float
    ) -> tuple[Any, str] | None:
        """`call`, where it can be done without a coroutine and nothing is out of the ordinary:
        else None, and nothing was applied."""
        quick = self._quick
        if quick is None:
            return None
        node = self.fleet.node(slot)
        if node is None:
            return None
        try:
            answer = quick(node, script.head + rest, deadline)
        except NotSent as error:
            raise self._unreachable(node, error) from None
        except NoAnswer:
            self.fleet.failed(node)
            raise
        if answer is not None and isinstance(answer[0], ReplyError):
            return None  # whatever it is, asking again shows it again
        return answer

    async def call(
        self, script: Script, rest: bytes, slot: int, deadline: float
    ) -> tuple[Any, str]:
        """Run a script; its reply, and the run_id of the server that gave it."""
        node = self.fleet.node(slot)
        if node is None:
            node = await self.fleet.find(self._transport, slot, deadline)
        answer = await self._ask(node, script.head + rest, 1, deadline, ORDINARY)
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
    ) -> list[Any]:
        """Run a script many times, in one batch for each server; a reply, or the trouble, each."""
        batches: dict[Node, list[int]] = {}
        for place, (_, slot) in enumerate(requests):
            node = self.fleet.node(slot)
            if node is None:
                node = await self.fleet.find(self._transport, slot, deadline)
            batches.setdefault(node, []).append(place)
        replies: list[Any] = [None] * len(requests)
        for node, places in batches.items():
            data = b"".join(script.head + requests[place][0] for place in places)
            try:
                if replicas is not None:
                    answers, _ = await self._ask_alone(node, data, len(places), replicas, deadline)
                else:
                    answer, _ = await self._ask(node, data, len(places), deadline, lane)
                    answers = [answer] if len(places) == 1 else answer
            except (NoAnswer, Unavailable) as error:
                for place in places:
                    replies[place] = error
                continue
            for place, reply in zip(places, answers, strict=True):
                replies[place] = reply
                if isinstance(reply, ReplyError):
                    rest, slot = requests[place]
                    try:
                        replies[place], _ = await self._insist(
                            node, script, rest, slot, reply, deadline
                        )
                    except (NoAnswer, Unavailable) as error:
                        replies[place] = error
        return replies

    async def call_and_wait(
        self, script: Script, rest: bytes, slot: int, replicas: Replicas, deadline: float
    ) -> tuple[Any, str, int]:
        """Run a script, and have replicas confirm it; how many did."""
        node = self.fleet.node(slot)
        if node is None:
            node = await self.fleet.find(self._transport, slot, deadline)
        wait = replicas.packed
        reply: Any = None
        for head in (script.head, script.full):
            (reply, count), run_id = await self._alone(node, head + rest + wait, 2, deadline)
            if not isinstance(reply, ReplyError):
                return reply, run_id, count if isinstance(count, int) else 0
            if not str(reply).startswith("NOSCRIPT"):
                break
        raise self._refused(node, reply)

    async def _ask_alone(
        self, node: Node, data: bytes, count: int, replicas: Replicas, deadline: float
    ) -> tuple[list[Any], str]:
        """Many requests, which count only if enough replicas confirm them."""
        answer, run_id = await self._alone(node, data + replicas.packed, count + 1, deadline)
        *answers, confirmed = answer
        if not isinstance(confirmed, int) or confirmed < replicas.count:
            raise NoAnswer(f"only {confirmed} of {replicas.count} replicas confirmed it")
        return answers, run_id

    async def _alone(self, node: Node, data: bytes, count: int, deadline: float) -> tuple[Any, str]:
        """On a connection of its own: WAIT stalls what is behind it."""
        try:
            return await self._transport.ask_alone(node, data, count, deadline)
        except NotSent as error:
            raise self._unreachable(node, error) from None
        except NoAnswer:
            self.fleet.failed(node)
            raise

    async def command(self, node: Node, data: bytes, deadline: float) -> Any:
        """Any command, at one node."""
        reply, _ = await self._ask(node, data, 1, deadline, ORDINARY)
        if isinstance(reply, ReplyError):
            raise self._refused(node, reply)
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
        node = self.fleet.node(0) or await self.fleet.find(self._transport, 0, deadline)
        try:
            return await self._transport.ear(node, hearing, deadline)
        except NotSent as error:
            raise self._unreachable(node, error) from None

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
        data, count = script.full + rest, 1
        for _ in range(HOPS):
            code, _, detail = str(error).partition(" ")
            if code == "NOSCRIPT":
                data, count = script.full + rest, 1
            elif code in ("MOVED", "ASK"):
                host, _, port = detail.partition(" ")[2].rpartition(":")
                address = host or node.address[0], int(port)
                if code == "MOVED":
                    node, data, count = self.fleet.moved(slot, address), script.full + rest, 1
                else:
                    node, data, count = self.fleet.other(address), ASKING + script.full + rest, 2
            else:
                raise self._refused(node, error)
            answer, run_id = await self._ask(node, data, count, deadline, ORDINARY)
            error = answer[-1] if count > 1 else answer
            if not isinstance(error, ReplyError):
                return error, run_id
        raise Unavailable(f"Redis redirected a request {HOPS} times: {error}")

    def _refused(self, node: Node, error: ReplyError) -> Exception:
        """READONLY, LOADING, CLUSTERDOWN, OOM, NOPERM and so on."""
        self.fleet.failed(node)
        meaning = trouble(error, str(node))
        return NoAnswer(str(error)) if meaning is None else meaning
