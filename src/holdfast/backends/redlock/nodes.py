"""The nodes: where each is, what is known about it, and what is owed to it.

Contract: no I/O. A node that could not be reached, or was silent, is left alone for a moment as
long as a quorum of others is there to ask. A farewell (`leave`) that a node did not acknowledge is
a debt: it is paid before the next thing that is said to it, and forgotten when the lease it was
about would be over anyway.
Partners: `crew.py` and `loops.py`, which connect; `quarantine.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from holdfast.backends.redis.transport import Node
from holdfast.backends.redis.wire import Address, ReplyError, Settings, info_field, pack, show
from holdfast.backends.redlock.quarantine import Memory
from holdfast.core.backoff import pause
from holdfast.errors import Misconfigured
from holdfast.ports.clock import now

__all__ = ["Debt", "Member", "NodeSettings", "places_to_ask"]

MOST_DEBTS = 10_000
"""Beyond so many, the oldest are forgotten: what they are about ends with its lease."""


@dataclass(frozen=True)
class NodeSettings(Settings):
    """The greeting asks for more than that of a single Redis: can this one have forgotten?"""

    quarantined: bool = True
    members: dict[Address, Member] = field(default_factory=dict[Address, "Member"], repr=False)

    def greeting(self) -> tuple[bytes, int]:
        greeting, count = super().greeting()
        asked = pack("CONFIG", "GET", "appendonly") + pack("CONFIG", "GET", "appendfsync")
        return greeting + asked, count + 2

    def greeted(self, address: Address, replies: Sequence[Any]) -> str:
        *usual, appendonly, appendfsync = replies
        run_id = super().greeted(address, usual)
        uptime = info_field(usual[-2], b"uptime_in_seconds:")
        if self.quarantined and not (run_id and uptime):
            raise Misconfigured(
                f"Redis at {show(address)} does not say when it was started: this user may not use "
                "INFO. Allow it (docs/backends/redlock.md has the exact ACL), or say "
                "quarantine=off, and know that a node that restarts may forget a lock"
            )
        durable = _value(appendonly) == b"yes" and _value(appendfsync) == b"always"
        self.members[address].met(run_id, float(uptime or 0), durable)
        return run_id


def _value(reply: Any) -> Any:
    """Of CONFIG GET; None where this user may not know."""
    if isinstance(reply, ReplyError) or not reply:
        return None
    if isinstance(reply, dict):  # RESP3
        return next(iter(cast(dict[bytes, bytes], reply).values()))
    return reply[1]


class Debt(NamedTuple):
    """A farewell that must reach a node."""

    owner: str
    until: float
    script: bytes
    rest: bytes

    @property
    def data(self) -> bytes:
        return self.script + self.rest


class Member(Node):
    """One of the masters."""

    __slots__ = ("_failures", "debts", "door", "memory", "on_debt", "retry_at", "trouble")

    def __init__(self, address: Address, span: float) -> None:
        super().__init__(address)
        self.memory = Memory(span)
        self.debts: dict[str, Debt] = {}
        self.on_debt: Callable[[], None] = _nothing  # never waits
        self.door = 0  # which of the addresses that its name has is tried
        self.retry_at = 0.0
        self.trouble = ""  # what was wrong with it last
        self._failures = 0

    def met(self, run_id: str, uptime: float, durable: bool) -> None:
        """It has introduced itself on a new connection."""
        self._failures, self.retry_at = 0, 0.0
        self.memory.met(run_id, uptime, durable, now())

    def failed(self, trouble: object) -> None:
        """It refused a connection, broke one, or was silent."""
        self.trouble = str(trouble)
        self._failures += 1
        self.retry_at = now() + pause(self._failures, random.random(), 60.0)

    def owe(self, debt: Debt) -> None:
        while len(self.debts) >= MOST_DEBTS:
            self.debts.pop(next(iter(self.debts)), None)
        self.debts[debt.owner] = debt
        self.on_debt()

    def pay(self) -> list[Debt]:
        """What is still worth saying; it is owed again if it is not acknowledged."""
        if not self.debts:
            return []
        moment = now()
        debts, self.debts = self.debts, {}
        return [debt for debt in debts.values() if debt.until > moment]

    def forgive(self, moment: float) -> bool:
        """Forget what is about leases that are over; whether anything is left."""
        for owner, debt in list(self.debts.items()):
            if debt.until <= moment:
                self.debts.pop(owner, None)
        return bool(self.debts)


def _nothing() -> None:
    """Nobody wants to know."""


def places_to_ask(members: Sequence[Member], quorum: int) -> Sequence[int]:
    """Everybody, but for those who failed a moment ago; unless no quorum would be left."""
    moment = now()
    able = [place for place, member in enumerate(members) if member.retry_at <= moment]
    return able if len(able) >= quorum else range(len(members))
