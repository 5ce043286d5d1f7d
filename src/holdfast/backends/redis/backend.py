"""The redis backend: claims become scripts, replies become grants.

Contract: `core/backend.py`. One script is one atomic step in the store, and decides by the server's
clock; what it answers is dated here, from before the request was sent (law 1). Waiting is done in
`waiting.py`; where requests go and how is the courier's business.
Partners: `scripts/*.lua`, the server's half; `url.py`, which makes this from a URL.
"""

from __future__ import annotations

import functools
import json
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.local import shown
from holdfast.backends.redis import overview
from holdfast.backends.redis.calls import Place, held_until
from holdfast.backends.redis.cells import Cells
from holdfast.backends.redis.courier import Courier, Replicas
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.listener import Listener, Seen
from holdfast.backends.redis.lua import ATTEMPT, EVICT, LEAVE, LOOK, RENEW
from holdfast.backends.redis.requests import Requests
from holdfast.backends.redis.transport import ORDINARY, RENEWALS
from holdfast.backends.redis.waiting import Room
from holdfast.backends.redis.wire import NoAnswer
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Mode,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["Backend", "Options"]

RELEASED = Released()
PATIENCE = 1.0
"""Seconds that the answer to an attempt or a release is waited for, or a third of the time there
is, if that is more: if it was lost, or the server was, asking again brings it in the time left."""

NOT_OURS = "Redis has it no longer: it expired, was evicted, or the server lost its memory"


class Options:
    """What a URL may say about waiting, tokens and replicas."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.prefix: str = values["prefix"]
        self.window: float = values["window"]
        self.heartbeat: float = values["heartbeat"]
        self.memory: float = values["fence_memory"]
        count, patience = values["replicas"], values["replica_timeout"]
        self.replicas = Replicas(count, patience) if count else None


class Backend(Cells):
    def __init__(self, make_courier: Callable[[bool], Courier], options: Options) -> None:
        self._make_courier = make_courier
        self._options = options
        self._replicas = options.replicas
        self._patience = PATIENCE + (options.replicas.patience if options.replicas else 0)
        self._channel = f"{options.prefix}:call:{secrets.token_hex(8)}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            modes=frozenset(Mode),
            fairness="fifo",
            fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
            crash_release="ttl",
            failover=(
                "a lock that was not yet replicated is lost with its master, and so is everything "
                "on a restart without persistence: two may then hold at once until the old lease "
                "ends; tokens still increase. ?replicas=N narrows it"
            ),
        )

    def open(self, port: Port, signals: Signals) -> None:
        options = self._options
        self._port = port
        self._courier = courier = self._make_courier(port.asynchronous)
        keys = Keys(options.prefix)
        self._requests = Requests(keys, self._channel, options.window, options.memory)
        counted = courier.fleet.counts_listeners
        self._room = Room(
            port,
            self._channel,
            options.heartbeat,
            lambda room: Listener(room, counted, self._look, courier.ear),
        )

    async def close(self) -> None:
        self._room.close()
        await self._room.emptied(self._port.now() + 1)
        await self._courier.close()

    # -- claims -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        hearing = self._room.hearing
        rest, slot = self._requests.attempt(claim, queue, hearing)
        sent = self._port.now()
        deadline = self._limit(sent, deadline)
        try:
            if self._replicas is not None:
                reply, run_id = await self._replicated(claim, rest, slot, self._replicas, deadline)
            else:
                courier = self._courier
                reply, run_id = courier.call_now(ATTEMPT, rest, slot, deadline) or (
                    await courier.call(ATTEMPT, rest, slot, deadline)
                )
        except NoAnswer as error:
            return Unknown(str(error))
        if isinstance(reply, int):
            if reply < 0:
                return Buried()
            fence = None if claim.mode is Mode.PERMITS else reply
            return Grant(claim, valid_until(sent, claim.ttl), fence)
        if reply[0] == 1:
            return self._held(claim, sent, reply)
        _, clock, look_at, number, ahead, info = reply
        self._room.anchors.set(run_id, sent, clock)
        place = Place(number, self._local(look_at, clock), sent, run_id, hearing)
        return Busy(_holder(info), ahead if ahead >= 0 else None, place)

    def _limit(self, sent: float, deadline: float) -> float:
        return min(deadline, sent + max(self._patience, (deadline - sent) / 3))

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        room = self._room
        try:
            ticket = room.enter(claim, busy.token)
            await ticket.event.wait(deadline)
            grant = room.grant(ticket)
        finally:
            room.leave(claim)
        if grant is not None and self._replicas is not None:
            return await self._confirm(grant, self._replicas, deadline)
        return grant

    async def _look(self, claims: Sequence[Claim], hearing: str, deadline: float) -> list[Seen]:
        requests = [self._requests.look(claim, hearing) for claim in claims]
        sent = self._port.now()
        answers = await self._courier.call_many(LOOK, requests, deadline, ORDINARY)
        return [
            self._seen(claim, sent, reply, run_id)
            for claim, (reply, run_id) in zip(claims, answers, strict=True)
        ]

    def _seen(self, claim: Claim, sent: float, reply: Any, run_id: str) -> Seen:
        if isinstance(reply, Exception):
            return Unknown(str(reply))
        if isinstance(reply, int):
            return None
        if reply[0] == 1:
            return self._held(claim, sent, reply)
        self._courier.met(run_id)
        _, clock, look_at = reply
        self._room.anchors.set(run_id, sent, clock)
        return self._local(look_at, clock)

    def _local(self, moment: int, clock: int) -> float:
        """The server's moment here, surely not too early; 0 is never."""
        return self._port.now() + (moment - clock) / 1e6 if moment else math.inf

    def _held(self, claim: Claim, sent: float, reply: list[Any]) -> Grant:
        _, fence, remaining = reply
        return Grant(claim, held_until(sent, remaining), fence or None)

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        self._room.call_off(claim)
        rest, slot = self._requests.leave(claim, tombstone)
        try:
            await self._courier.call(LEAVE, rest, slot, deadline)
        except NoAnswer as error:
            return Unknown(str(error))
        return RELEASED

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        rest, slot = self._requests.leave(grant.claim, tombstone)
        deadline = self._limit(self._port.now(), deadline)
        try:
            courier = self._courier
            reply, _ = courier.call_now(LEAVE, rest, slot, deadline) or (
                await courier.call(LEAVE, rest, slot, deadline)
            )
        except NoAnswer as error:
            return Unknown(str(error))
        return RELEASED if reply else AlreadyLost(NOT_OURS)

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        requests = [self._requests.renew(grant.claim) for grant in grants]
        sent = self._port.now()
        replies = await self._courier.call_many(RENEW, requests, deadline, RENEWALS, self._replicas)
        return [
            _renewed(grant.claim, sent, reply)
            for grant, (reply, _) in zip(grants, replies, strict=True)
        ]

    # -- replicas ---------------------------------------------------------------------------------

    async def _replicated(
        self, claim: Claim, rest: bytes, slot: int, replicas: Replicas, deadline: float
    ) -> tuple[Any, str]:
        """An attempt that counts only when enough replicas have it."""
        reply, run_id, count = await self._courier.call_and_wait(
            ATTEMPT, rest, slot, replicas, deadline
        )
        granted = reply > 0 if isinstance(reply, int) else reply[0] == 1
        if granted and not isinstance(reply, int):
            # It was granted before, on another connection perhaps, and WAIT need not mean that
            # write: make one of our own.
            rest, slot = self._requests.renew(claim)
            _, _, count = await self._courier.call_and_wait(RENEW, rest, slot, replicas, deadline)
        if granted and count < replicas.count:
            await self._give_back(claim, count, replicas, deadline)
        return reply, run_id

    async def _confirm(self, grant: Grant, replicas: Replicas, deadline: float) -> Grant | None:
        """A grant that was called out counts only when enough replicas have it."""
        claim = grant.claim
        rest, slot = self._requests.renew(claim)
        sent = self._port.now()
        limit = min(grant.until, max(deadline, sent + replicas.patience))
        try:
            reply, _, count = await self._courier.call_and_wait(RENEW, rest, slot, replicas, limit)
            if not reply:
                return None
            if count < replicas.count:
                await self._give_back(claim, count, replicas, limit)
        except NoAnswer:
            return None  # the next attempt finds out
        return Grant(claim, valid_until(sent, claim.ttl), grant.fence)

    async def _give_back(
        self, claim: Claim, count: int, replicas: Replicas, deadline: float
    ) -> None:
        """Too few replicas have it: a failover could give it to somebody else."""
        rest, slot = self._requests.leave(claim, False)
        few = f"only {count} of {replicas.count} replicas confirmed the lock"
        try:
            await self._courier.call(LEAVE, rest, slot, deadline)
        # It may still be there: then nothing is known (law 2).
        except (NoAnswer, HoldfastError) as error:
            raise NoAnswer(f"{few}, and giving it back was not confirmed: {error}") from None
        raise Unavailable(
            f"{few} within {replicas.patience:g} s, so it was given back: a failover could have "
            "lost it"
        )

    # -- operators --------------------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        courier, requests = self._courier, self._requests
        return await courier.read(
            lambda: overview.inspect(courier, requests, prefix, exact, deadline), deadline
        )

    async def evict(self, name: str, deadline: float) -> int:
        rest, slot = self._requests.evict(name)
        try:
            reply, _ = await self._courier.call(EVICT, rest, slot, deadline)
        except NoAnswer as error:
            raise Unavailable(f"Redis did not answer: {error}") from None
        count: int = reply
        return count


@functools.lru_cache(maxsize=64)
def _holder(info: bytes) -> str:
    try:
        return shown(json.loads(info)) if info else ""
    except ValueError:
        return ""


def _renewed(claim: Claim, sent: float, reply: Any) -> Renewed | Lost | Unknown:
    if isinstance(reply, Exception):
        return Unknown(str(reply))
    return Renewed(valid_until(sent, claim.ttl)) if reply else Lost(NOT_OURS)
