"""Several locks at once: taken by one script, released by one batch.

Contract: `core.backend.Together`. One script can take only what one server has in one slot, so in a
cluster the names must share one; with `?replicas=N` each lock is confirmed by itself. Elsewhere the
answer is that they are not to be had so. A release need not be one step, only one round trip: it is
the ordinary script for each, which hands over to who waits.
Partners: `scripts/together.lua`; `backend.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.redis.lua import LEAVE, together
from holdfast.backends.redis.requests import LineRequests
from holdfast.backends.redis.steps import NOT_OURS, RELEASED, Steps
from holdfast.backends.redis.transport import ORDINARY
from holdfast.backends.redis.wire import NoAnswer
from holdfast.core.lease import valid_until
from holdfast.types import AlreadyLost, Busy, Claim, Grant, Released, Unknown

__all__ = ["Several"]


class Several(Steps):
    """The part of the backend that takes more than one lock in one step."""

    _line: LineRequests

    async def attempt_together(
        self, claims: Sequence[Claim], deadline: float
    ) -> Sequence[Grant] | Busy | Unknown:
        if self._replicas is not None or not self._in_one_place(claims):
            return Busy()
        rest, slot = self._line.together(claims)
        sent = self._port.now()
        deadline = self._limit(sent, deadline)
        try:
            reply, _ = await self._courier.call(together(len(claims)), rest, slot, deadline)
        except NoAnswer as error:
            return Unknown(str(error))
        if isinstance(reply, int):
            return Busy()
        return [
            Grant(claim, valid_until(sent, claim.ttl), fence)
            for claim, fence in zip(claims, reply, strict=True)
        ]

    def _in_one_place(self, claims: Sequence[Claim]) -> bool:
        if not self._courier.fleet.sharded:
            return True  # one server has everything
        return len({self._line.spell(claim.name).slot for claim in claims}) == 1

    async def release_together(
        self, grants: Sequence[Grant], deadline: float
    ) -> list[Released | AlreadyLost | Unknown]:
        requests = [self._line.leave(grant.claim, grant.claim.unanswered) for grant in grants]
        deadline = self._limit(self._port.now(), deadline)
        replies = await self._courier.call_many(LEAVE, requests, deadline, ORDINARY)
        return [
            Unknown(str(reply))
            if isinstance(reply, Exception)
            else (RELEASED if reply else AlreadyLost(NOT_OURS))
            for reply, _ in replies
        ]
