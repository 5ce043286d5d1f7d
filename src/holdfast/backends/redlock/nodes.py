"""The nodes: where each is, what is known about it, and what is owed to it.

Contract: no I/O. A node that could not be reached, or was silent, is left alone for a moment, a
second at most, as long as a quorum of others is there to ask. A farewell (`leave`) that a node did
not acknowledge is a debt: it is paid before the next thing that is said to it, and forgotten when
the lease it was about would be over anyway.
Hazard: two names of one server, or a name that moved to another node's server, are two votes of
one. The server's run_id tells.
Partners: `crew.py` and `loops.py`, which connect; `quarantine.py`.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from holdfast.backends.redis.transport import Node
from holdfast.backends.redis.wire import (
    Address,
    NotSent,
    ReplyError,
    Settings,
    info_field,
    pack,
    show,
)
from holdfast.backends.redlock.quarantine import Memory
from holdfast.core.backoff import pause
from holdfast.errors import Misconfigured
from holdfast.ports.clock import now

__all__ = ["Debt", "Login", "Member", "NodeSettings", "places_to_ask"]

log = logging.getLogger("holdfast")

MOST_DEBTS = 10_000
"""Beyond so many nothing is noted: what it is about ends with its lease."""

DURABLE = {"appendonly": b"yes", "appendfsync": b"always", "no-appendfsync-on-rewrite": b"no"}
"""With these settings a node has its votes on disk before it answers."""


class Login(NamedTuple):
    """As whom, and where, a client works on one node."""

    user: str
    password: str
    db: int

    def __repr__(self) -> str:
        return f"Login({self.user!r}, db={self.db})"


@dataclass(frozen=True)
class NodeSettings(Settings):
    """The greeting asks for more than that of a single Redis: can this one have forgotten?"""

    quarantined: bool = True
    members: dict[Address, Member] = field(default_factory=dict[Address, "Member"], repr=False)

    def at(self, address: Address) -> NodeSettings:
        user, password, db = self.members[address].login
        return replace(self, user=user, password=password, db=db)

    def greeting(self) -> tuple[bytes, int]:
        greeting, count = super().greeting()
        asked = b"".join([pack("CONFIG", "GET", name) for name in DURABLE])
        return greeting + asked, count + len(DURABLE)

    def greeted(self, address: Address, replies: Sequence[Any]) -> str:
        usual, settings = replies[: -len(DURABLE)], replies[-len(DURABLE) :]
        run_id = super().greeted(address, usual)
        uptime = info_field(usual[-2], b"uptime_in_seconds:")
        if self.quarantined and not (run_id and uptime):
            raise Misconfigured(
                f"Redis at {show(address)} does not say when it was started: this user may not use "
                "INFO. Allow it (docs/backends/redlock.md has the exact ACL), or say "
                "quarantine=off, and know that a node that restarts may forget a lock"
            )
        member = self.members[address]
        for other in self.members.values():
            if run_id and other is not member and other.memory.run_id == run_id:
                raise Misconfigured(
                    f"{member} and {other} are the same Redis, which would have two votes. Name "
                    "independent masters"
                )
        durable = list(map(_value, settings)) == list(DURABLE.values())
        member.met(run_id, float(uptime or 0), durable)
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

    __slots__ = ("_failures", "debts", "door", "login", "memory", "on_debt", "retry_at", "trouble")

    def __init__(self, address: Address, login: Login, span: float) -> None:
        super().__init__(address)
        self.login = login
        self.memory = Memory(span)
        self.debts: dict[str, Debt] = {}
        self.on_debt: Callable[[], None] = _nothing  # never waits
        self.door = 0  # which of the addresses that its name has is tried
        self.retry_at = 0.0
        self.trouble: Exception = NotSent("it is not known yet")  # what was wrong with it last
        self._failures = 0

    def met(self, run_id: str, uptime: float, durable: bool) -> None:
        """It has introduced itself on a new connection."""
        self._failures, self.retry_at = 0, 0.0
        self.trouble = NotSent("it answered a moment ago")
        self.memory.met(run_id, uptime, durable, now())

    def failed(self, trouble: Exception) -> None:
        """It refused a connection, broke one, was silent, or refused what it was told."""
        if isinstance(trouble, Misconfigured) and not isinstance(self.trouble, Misconfigured):
            # Perhaps nobody else is told: the others are a quorum.
            log.warning("the node %s has no vote: %s", self, trouble)
        self.trouble = trouble
        self._failures += 1
        self.retry_at = now() + pause(self._failures, random.random(), math.inf)

    @property
    def absence(self) -> Exception:
        """Why it is not asked."""
        trouble = self.trouble
        return trouble if isinstance(trouble, Misconfigured) else NotSent(str(trouble))

    def owe(self, debt: Debt) -> None:
        if len(self.debts) < MOST_DEBTS:
            self.debts[debt.owner] = debt
            self.on_debt()

    def due(self) -> list[Debt]:
        """What is still worth saying. It stays owed until `paid`, which is said when it is noted
        elsewhere: an interrupt in between forgets nothing, and to say it twice does no harm."""
        if not self.debts:
            return []
        self.forgive(now())
        return list(self.debts.values())

    def paid(self, debts: Iterable[Debt]) -> None:
        for debt in debts:
            self.debts.pop(debt.owner, None)

    def forgive(self, moment: float) -> bool:
        """Forget what is about leases that are over; whether anything is left."""
        for owner, debt in list(self.debts.items()):
            if debt.until <= moment:
                self.debts.pop(owner, None)
        return bool(self.debts)


def _nothing() -> None:
    """Nobody wants to know."""


def places_to_ask(members: Sequence[Member], quorum: int) -> Sequence[int]:
    """Everybody, but for those who failed a moment ago; unless they are needed for a quorum."""
    moment = now()
    able = [place for place, member in enumerate(members) if member.retry_at <= moment]
    if len(able) < len(members):
        counting = sum(members[place].memory.remaining(moment) == 0.0 for place in able)
        if counting < quorum:
            return range(len(members))
    return able
