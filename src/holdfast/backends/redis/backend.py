"""The redis backend: claims become scripts, replies become grants.

Contract: `core/backend.py`. One script is one atomic step in the store, and decides by the server's
clock; what it answers is dated here, from before the request was sent (law 1). Waiting is done in
`waiting.py`; what other dialects do alike, in `steps.py`; where requests go and how is the
courier's business.
Partners: `scripts/*.lua`, the server's half; `url.py`, which makes this from a URL.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.common import holder_of
from holdfast.backends.redis import overview
from holdfast.backends.redis.calls import Place, held_until
from holdfast.backends.redis.courier import Courier, Replicas
from holdfast.backends.redis.keys import LETTERS, Keys
from holdfast.backends.redis.listener import Listener, Seen
from holdfast.backends.redis.lua import (
    ATTEMPT,
    DOWNGRADE,
    EVICT,
    LEAVE,
    LOOK,
    OVERVIEW,
    RENEW,
    Scripts,
)
from holdfast.backends.redis.presence import RedisLink, RedisRoll, appear
from holdfast.backends.redis.requests import LineRequests
from holdfast.backends.redis.steps import NO_LOCK, NOT_OURS, Options, foreign
from holdfast.backends.redis.together import Several
from holdfast.backends.redis.transport import ORDINARY
from holdfast.backends.redis.waiting import Room
from holdfast.backends.redis.wire import NoAnswer
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import (
    Buried,
    Busy,
    Capabilities,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Mode,
    Unknown,
)

__all__ = ["Backend"]

SCRIPTS = Scripts(ATTEMPT, RENEW, LEAVE, EVICT, OVERVIEW)


class Backend(Several):
    def __init__(self, make_courier: Callable[[bool], Courier], options: Options) -> None:
        super().__init__(make_courier, options, SCRIPTS)
        self._channel = f"{options.prefix}:call:{secrets.token_hex(8)}"
        self._elsewhere = 0

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
        self._line = LineRequests(keys, self._channel, options.window, options.memory)
        self._requests = self._line
        sharded = courier.fleet.sharded
        self._room = Room(
            port,
            self._channel,
            options.heartbeat,
            lambda room: Listener(room, not sharded, self._look, courier.ear),
        )

    # -- claims -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        hearing = self._room.hearing
        rest, slot = self._line.attempt(claim, queue, hearing)
        sent = self._port.now()
        try:
            reply, run_id = await self._ask(claim, rest, slot, sent, deadline)
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
        return Busy(holder_of(info), ahead if ahead >= 0 else None, place)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        room = self._room
        try:
            ticket = room.enter(claim, busy.token)
            await ticket.event.wait(room.heard_until(deadline))
            grant = room.grant(ticket)
        finally:
            room.leave(claim)
        if grant is not None and self._replicas is not None:
            return await self._confirm(grant, self._replicas, deadline)
        return grant

    async def _look(self, claims: Sequence[Claim], hearing: str, deadline: float) -> list[Seen]:
        requests = [self._line.look(claim, hearing) for claim in claims]
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

    async def downgrade(self, grant: Grant, deadline: float) -> Lost | Unknown | None:
        rest, slot = self._line.renew(grant.claim)
        deadline = self._limit(self._port.now(), deadline)
        try:
            reply, _ = await self._courier.call(DOWNGRADE, rest, slot, deadline)
        except NoAnswer as error:
            return Unknown(str(error))
        if reply <= NO_LOCK:
            raise self._no_lock(grant.claim.name, reply)
        return None if reply else Lost(NOT_OURS)

    # -- replicas ---------------------------------------------------------------------------------

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

    # -- for the crash detector -------------------------------------------------------------------

    async def appear(self, presence: str, deadline: float) -> RedisLink:
        key = self._requests.keys.lock(f"{presence} {self._elsewhere}")
        try:
            return await appear(self._courier, presence, key, deadline)
        except Unavailable:
            self._elsewhere += 1  # in a cluster: another slot, perhaps of another master
            raise

    def roll(self) -> RedisRoll:
        return RedisRoll(self._courier, self._requests)

    # -- what the steps need ----------------------------------------------------------------------

    def _call_off(self, claim: Claim) -> None:
        self._room.call_off(claim)

    def _no_lock(self, name: str, reply: int) -> Misconfigured:
        key, beside = self._line.keys.lock(name), NO_LOCK - reply
        return foreign(f"{key}:{LETTERS[beside - 1]}" if beside else key)

    def _shown(self, name: str, reply: Any) -> LockInfo:
        return overview.line(name, reply)
