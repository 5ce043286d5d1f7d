"""The steps of a claim that are asked alike in every dialect: all but taking it and waiting for it.

Contract: `core/backend.py`. One script is one atomic step in the store; what it answers is dated
here, from before the request was sent (law 1). With `?replicas=N` what was granted counts only when
so many replicas have it. Partners: `backend.py` and `literal.py`, which add the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.redis import overview
from holdfast.backends.redis.cells import Cells
from holdfast.backends.redis.courier import Courier, Replicas
from holdfast.backends.redis.lua import Scripts
from holdfast.backends.redis.transport import RENEWALS
from holdfast.backends.redis.wire import NoAnswer
from holdfast.core.lease import valid_until
from holdfast.errors import HoldfastError, Misconfigured, Unavailable
from holdfast.types import AlreadyLost, Claim, Grant, LockInfo, Lost, Released, Renewed, Unknown

__all__ = ["Options", "Steps", "foreign"]

RELEASED = Released()
PATIENCE = 1.0
"""Seconds that the answer to an attempt or a release is waited for, or a third of the time there
is, if that is more: if it was lost, or the server was, asking again brings it in the time left."""

NO_LOCK = -2
"""What a script says of a key that holds something else: it is not ours to replace. Of the n-th key
beside it: n less."""

NOT_OURS = "Redis has it no longer: it expired, was evicted, or the server lost its memory"


class Options:
    """What a URL may say about waiting, tokens and replicas."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.prefix: str = values["prefix"]
        self.window: float = values["window"]
        self.heartbeat: float = values["heartbeat"]
        self.poll: float = values["poll"]
        self.memory: float = values["fence_memory"]
        count, patience = values["replicas"], values["replica_timeout"]
        self.replicas = Replicas(count, patience) if count else None


class Steps(Cells, ABC):
    def __init__(
        self, make_courier: Callable[[bool], Courier], options: Options, scripts: Scripts
    ) -> None:
        self._make_courier = make_courier
        self._options = options
        self._replicas = options.replicas
        self._patience = PATIENCE + (options.replicas.patience if options.replicas else 0)
        self._scripts = scripts
        self._attempt, self._leave = scripts.attempt, scripts.leave

    @abstractmethod
    def _call_off(self, claim: Claim) -> None:
        """Whoever still waits for this claim need not."""

    @abstractmethod
    def _no_lock(self, name: str, reply: int) -> Misconfigured:
        """What it means that something else is where this lock is kept."""

    @abstractmethod
    def _shown(self, name: str, reply: Any) -> LockInfo:
        """What the overview says about a name."""

    async def close(self) -> None:
        self._room.close()
        await self._room.emptied(self._port.now() + 1)
        await self._courier.close()

    # -- claims -----------------------------------------------------------------------------------

    def _limit(self, sent: float, deadline: float) -> float:
        return min(deadline, sent + max(self._patience, (deadline - sent) / 3))

    async def _ask(
        self, claim: Claim, rest: bytes, slot: int, sent: float, deadline: float
    ) -> tuple[Any, str]:
        """What an attempt is answered, and by which server."""
        deadline = self._limit(sent, deadline)
        if self._replicas is not None:
            answer = await self._replicated(claim, rest, slot, self._replicas, deadline)
        else:
            answer = await self._courier.call(self._attempt, rest, slot, deadline)
        reply = answer[0]
        if isinstance(reply, int) and reply <= NO_LOCK:
            raise self._no_lock(claim.name, reply)
        return answer

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        self._call_off(claim)
        rest, slot = self._requests.leave(claim, tombstone)
        try:
            await self._courier.call(self._leave, rest, slot, deadline)
        except NoAnswer as error:
            return Unknown(str(error))
        return RELEASED

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        rest, slot = self._requests.leave(grant.claim, tombstone)
        deadline = self._limit(self._port.now(), deadline)
        try:
            reply, _ = await self._courier.call(self._leave, rest, slot, deadline)
        except NoAnswer as error:
            return Unknown(str(error))
        return RELEASED if reply else AlreadyLost(NOT_OURS)

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        requests = [self._requests.renew(grant.claim) for grant in grants]
        sent = self._port.now()
        replies = await self._courier.call_many(
            self._scripts.renew, requests, deadline, RENEWALS, self._replicas
        )
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
            self._attempt, rest, slot, replicas, deadline
        )
        granted = reply > 0 if isinstance(reply, int) else reply[0] == 1
        if granted and not isinstance(reply, int):
            # It was granted before, on another connection perhaps, and WAIT need not mean that
            # write: make one of our own.
            rest, slot = self._requests.renew(claim)
            _, _, count = await self._courier.call_and_wait(
                self._scripts.renew, rest, slot, replicas, deadline
            )
        if granted and count < replicas.count:
            await self._give_back(claim, count, replicas, deadline)
        return reply, run_id

    async def _give_back(
        self, claim: Claim, count: int, replicas: Replicas, deadline: float
    ) -> None:
        """Too few replicas have it: a failover could give it to somebody else."""
        rest, slot = self._requests.leave(claim, False)
        few = f"only {count} of {replicas.count} replicas confirmed the lock"
        try:
            await self._courier.call(self._leave, rest, slot, deadline)
        # It may still be there: then nothing is known (law 2).
        except (NoAnswer, HoldfastError) as error:
            raise NoAnswer(f"{few}, and giving it back was not confirmed: {error}") from None
        raise Unavailable(
            f"{few} within {replicas.patience:g} s, so it was given back: a failover could have "
            "lost it"
        )

    # -- operators --------------------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        courier, requests, script = self._courier, self._requests, self._scripts.overview
        return await courier.read(
            lambda: overview.inspect(
                courier, requests, script, self._shown, prefix, exact, deadline
            ),
            deadline,
        )

    async def evict(self, name: str, deadline: float) -> int:
        rest, slot = self._requests.evict(name)
        try:
            reply, _ = await self._courier.call(self._scripts.evict, rest, slot, deadline)
        except NoAnswer as error:
            raise Unavailable(f"Redis did not answer: {error}") from None
        if reply <= NO_LOCK:
            raise self._no_lock(name, reply)
        count: int = reply
        return count


def foreign(key: str) -> Misconfigured:
    """What it means that something else is where we keep what belongs to a lock."""
    return Misconfigured(
        f"the key {key!r} holds something that is no lock of this version of holdfast. Use another "
        "prefix or name, or delete the key if nobody needs it"
    )


def _renewed(claim: Claim, sent: float, reply: Any) -> Renewed | Lost | Unknown:
    if isinstance(reply, Exception):
        return Unknown(str(reply))
    return Renewed(valid_until(sent, claim.ttl)) if reply else Lost(NOT_OURS)
