"""Locks that other libraries understand: the key is the name, and what it holds is theirs.

Contract: `core/backend.py`, exclusive claims only. The store keeps no line, so waiting is done in
`lobby.py`, by announcements and by looking. What others do not need, tokens and tombstones, is kept
beside the lock and never in it.
Partners: `scripts/literal*.lua`, the server's half; `plain.py` and `redisson.py`, the two dialects.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.backends.common import holder_of, info_of, info_text, public_id
from holdfast.backends.redis import overview
from holdfast.backends.redis.calls import held_until
from holdfast.backends.redis.courier import Courier
from holdfast.backends.redis.keys import LiteralKeys
from holdfast.backends.redis.listener import Listener, ask_nobody
from holdfast.backends.redis.lobby import Lobby, Sight
from holdfast.backends.redis.lua import Script, Scripts
from holdfast.backends.redis.requests import Requests, microseconds
from holdfast.backends.redis.steps import NO_LOCK, Options, Steps, foreign
from holdfast.backends.redis.waiting import Room
from holdfast.backends.redis.wire import NoAnswer, pack_word
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import (
    Buried,
    Busy,
    Capabilities,
    Claim,
    ClaimInfo,
    Grant,
    LockInfo,
    Mode,
    Unknown,
)

__all__ = ["Dialect", "LiteralBackend", "scripts_of"]


class Dialect(NamedTuple):
    name: str
    scripts: Scripts
    channel: Callable[[str, str], str]
    """Where releases are announced, from the prefix and a lock's name."""
    others_announce: bool
    """Whether others than holdfast announce theirs there, too."""


def scripts_of(dialect: str) -> Scripts:
    """The literal scripts, on the functions of one dialect."""
    return Scripts(
        attempt=Script("literal_attempt", 3, 4, dialect),
        renew=Script("literal_renew", 3, 3, dialect),
        leave=Script("literal_leave", 3, 4, dialect),
        evict=Script("literal_evict", 3, 2, dialect),
        overview=Script("literal_overview", 3, 0, dialect),
    )


class LiteralRequests(Requests):
    def __init__(
        self, keys: LiteralKeys, memory: float, channel: Callable[[str], str], sharded: bool
    ) -> None:
        super().__init__(keys, memory)
        self.beside = keys.beside
        self._channel = channel
        self._sharded = pack_word("1" if sharded else "0")

    def take(self, claim: Claim) -> tuple[bytes, int]:
        spelling = self.spell(claim.name)
        words = claim.owner, microseconds(claim.ttl), self._memory, info_text(claim.info)
        return spelling.keys + b"".join(map(pack_word, words)), spelling.slot

    def leave(self, claim: Claim, tombstone: bool) -> tuple[bytes, int]:
        rest, slot = super().leave(claim, tombstone)
        return rest + self._where(claim.name), slot

    def evict(self, name: str) -> tuple[bytes, int]:
        spelling = self.spell(name)
        return spelling.keys + self._where(name), spelling.slot

    def _where(self, name: str) -> bytes:
        return pack_word(self._channel(name)) + self._sharded


class LiteralBackend(Steps):
    def __init__(
        self, make_courier: Callable[[bool], Courier], options: Options, dialect: Dialect
    ) -> None:
        super().__init__(make_courier, options, dialect.scripts)
        self._dialect = dialect

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            modes=frozenset({Mode.EXCLUSIVE}),
            fairness="none",
            fencing=frozenset({Mode.EXCLUSIVE}),
            crash_release="ttl",
            failover=(
                "a lock that was not yet replicated is lost with its master, and so is everything "
                "on a restart without persistence: two may then hold at once until the old lease "
                "ends; tokens of holdfast clients still increase, other clients have none. "
                "?replicas=N narrows it"
            ),
            inspection=False,
        )

    def open(self, port: Port, signals: Signals) -> None:
        options, dialect = self._options, self._dialect
        self._port = port
        self._courier = courier = self._make_courier(port.asynchronous)
        sharded = courier.fleet.sharded
        # In a cluster others announce to a shard's listeners, and we do not listen to every shard.
        self._announced = dialect.others_announce and not sharded

        def channel(name: str) -> str:
            return dialect.channel(options.prefix, name)

        keys = LiteralKeys(options.prefix, sharded)
        self._literal = LiteralRequests(keys, options.memory, channel, sharded)
        self._requests = self._literal
        own = f"{options.prefix}:call:{secrets.token_hex(8)}"
        self._room = Room(
            port,
            own,
            options.heartbeat,
            lambda room: Listener(room, not sharded, ask_nobody, courier.ear),
        )
        self._lobby = Lobby(port, self._room, channel, options.heartbeat, options.poll)

    async def close(self) -> None:
        self._lobby.close()
        await super().close()

    # -- claims -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        lobby = self._lobby
        rest, slot = self._literal.take(claim)
        heard = lobby.asks(claim)
        sent = self._port.now()
        try:
            reply, run_id = await self._ask(claim, rest, slot, sent, deadline)
        except NoAnswer as error:
            lobby.failed(claim)
            return Unknown(str(error))
        except Unavailable:
            lobby.failed(claim)
            raise
        if isinstance(reply, int):
            if reply < 0:
                return Buried()
            grant = Grant(claim, valid_until(sent, claim.ttl), reply)
        elif reply[0] == 1:
            _, fence, remaining = reply
            grant = Grant(claim, held_until(sent, remaining), fence)
        else:
            _, remaining, ours, info = reply
            self._courier.met(run_id)
            now = self._port.now()
            ends = now + remaining / 1e6 if remaining >= 0 else math.inf
            announced = self._announced or ours == 1
            sight = Sight(now - sent, heard, ends, announced)
            return Busy(holder_of(info), None, sight)
        lobby.granted(claim, grant.until)
        return grant

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> None:
        await self._lobby.wait(claim, busy.token, deadline)

    def _call_off(self, claim: Claim) -> None:
        self._lobby.leave(claim)

    def _no_lock(self, name: str, reply: int) -> Misconfigured:
        if reply < NO_LOCK:
            return foreign(self._literal.beside(name, "st"[NO_LOCK - reply - 1]))
        return Misconfigured(
            f"the key {name!r} holds something that is no lock of dialect={self._dialect.name}: "
            "another kind of lock, or data. Use another name, or the dialect it was made with"
        )

    # -- operators --------------------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        """Who holds. Names that no holdfast client has used lately are found by their exact name
        only: they are keys like any other. Who waits is not known."""
        found = await super().inspect(prefix, exact, deadline)
        if prefix and not exact and all(info.name != prefix for info in found):
            try:
                found = [*await super().inspect(prefix, True, deadline), *found]
            except Misconfigured:
                pass  # no lock can have this name
        return found

    def _shown(self, name: str, reply: Any) -> LockInfo:
        now, holder, remaining, ours, flat = reply
        marks = overview.pairs(flat) if ours else {}
        fence = int(marks[b"f"]) if ours else None
        if not holder:
            return LockInfo(name, (), ())
        claim = ClaimInfo(
            id=public_id(holder.decode(errors="replace")),
            mode=Mode.EXCLUSIVE,
            since=(now - int(marks[b"a"])) / 1e6 if ours else 0.0,
            remaining=remaining / 1e6 if remaining >= 0 else None,
            fence=fence,
            info=info_of(marks[b"i"]) if ours else {},
        )
        return LockInfo(name, (claim,), (), fence)
