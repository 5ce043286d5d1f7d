"""One hot resource in segments that are locked one by one, and a way to take whichever is free.

Contract: a name has `count` stripes, each a lock of its own. A key belongs to one of them, the same
in every process, on every host and in every version: the first eight bytes of its SHA-256, as a
big-endian number, modulo the count. The count is part of a stripe's name: a client that has another
one is then seen by operators, though nothing can make the two exclude one another.

Any of them: they are tried in random order; if none is free, somebody stands in every line at once,
and the first to be granted has it. Waiting in one line would miss all the others.
Law 4: the rest is withdrawn, by the task that won and not by the caller, who has waited enough; a
second grant, which was under way, is given back. Hazard: each line is a task of the port's, on the
thread port a thread, because a wait blocks; `withdraw` ends the wait of another (core/backend.py).
Partners: `core/acquire.py`, which stands in each line; `skins/*/stripes.py`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.acquire import Acquisition, Engine, GivenUp
from holdfast.core.hold import Hold
from holdfast.core.options import Want
from holdfast.core.port import Task
from holdfast.errors import HoldfastError, LeaseLost, Misconfigured
from holdfast.types import Busy, Released, Unknown

__all__ = ["AnyAcquisition", "checked_count", "index_of", "stripe_name"]

log = logging.getLogger("holdfast")

MOST = 1024

LATE = 2.0
"""How long after the deadline those in line may still be leaving it."""

_standing: set[AnyAcquisition] = set()
"""Whose tasks stand in line: an event loop remembers them only weakly."""


def checked_count(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise Misconfigured(f"stripes(name, count): from 1 to {MOST} stripes, not {count!r:.80}")
    return count


def stripe_name(name: str, number: int, count: int) -> str:
    return f"{name}[{number}/{count}]"


def index_of(key: Any, count: int) -> int:
    """Which stripe a key belongs to, for ever."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if isinstance(key, str):
        try:
            key = key.encode()
        except UnicodeEncodeError:
            raise Misconfigured(f"the key {key!r:.80} cannot be written as UTF-8") from None
    if not isinstance(key, bytes):
        raise Misconfigured(f"a key is text, bytes or a whole number, not {type(key).__name__}")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % count


class AnyAcquisition:
    """As `Acquisition`, for whichever of several names is to be had first."""

    __slots__ = (
        "engine", "event", "left", "members", "on_lost", "over", "stripe", "tasks",
        "trouble", "want", "wants", "winner", "won",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        wants: Sequence[Want],
        on_lost: Callable[[LeaseLost], Any] | None,
    ) -> None:
        """`wants` say nothing of a loss: only who wins is told of one."""
        self.engine = engine
        self.wants = wants
        self.want = wants[0]
        self.on_lost = on_lost
        self.members: list[Acquisition] = []
        self.tasks: list[Task] = []
        self.event = engine.port.event()  # somebody has won, or nobody is left
        self.stripe = 0
        self.left = 0  # how many stand in line
        self.over = False  # who is granted now comes too late
        self.won: Hold | None = None
        self.winner: Acquisition | None = None
        self.trouble: Exception | None = None

    def abandon(self) -> None:
        with self.engine.port.mutex():
            self.over = True
        for member in self.members:
            member.give_up()
            member.abandon()

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        port = self.engine.port
        deadline = port.now() + timeout if blocking and timeout >= 0 else math.inf
        outcome = await self._try_each(deadline)
        if isinstance(outcome, Busy) and blocking and port.now() < deadline:
            outcome = await self._stand_everywhere(outcome, deadline)
        if isinstance(outcome, Hold) and self.on_lost is not None:
            outcome.listen(self, self.on_lost)
            if outcome.lost:  # between the two
                outcome.announce(port)
        return outcome

    async def _try_each(self, deadline: float) -> Hold | Busy:
        port = self.engine.port
        outcome: Hold | Busy = Busy()
        for number in sorted(range(len(self.wants)), key=lambda _: port.random()):
            self.members = [Acquisition(self.engine, self.wants[number])]
            outcome = await self.members[0].run(False, 0.0)
            if isinstance(outcome, Hold):
                self.stripe = number
                break
            if port.now() >= deadline:
                break
        return outcome

    async def _stand_everywhere(self, busy: Busy, deadline: float) -> Hold | Busy:
        port = self.engine.port
        self.members = [Acquisition(self.engine, want) for want in self.wants]
        self.left = len(self.members)
        _standing.add(self)
        for number in range(len(self.members)):
            stand = functools.partial(self._stand, number, deadline)
            self.tasks.append(port.task(stand, _nothing, "holdfast-stripe"))
            self.tasks[-1].start()
        await self.event.wait(None if math.isinf(deadline) else deadline + LATE)
        with port.mutex():
            self.over = True
        if self.won is not None:
            return self.won
        self.abandon()  # who still stands; usually nobody
        if self.trouble is not None and port.now() < deadline:
            raise self.trouble
        return busy  # it was when we looked; there may have been no time to look again

    async def _stand(self, number: int, deadline: float) -> None:
        """In one line, to its end."""
        port, member = self.engine.port, self.members[number]
        try:
            await self._until_granted(number, member, deadline)
            if self.winner is member:  # whatever happens here, the lease is the caller's
                await self._call_off(member)
        finally:
            with port.mutex():
                self.left -= 1
            if self.left == 0:
                self.event.set()
                _standing.discard(self)

    async def _until_granted(self, number: int, member: Acquisition, deadline: float) -> None:
        try:
            left = deadline - self.engine.port.now()
            outcome = await member.run(True, -1.0 if math.isinf(left) else max(0.0, left))
            if isinstance(outcome, Hold) and not self._wins(number, outcome):
                await self.engine.release(outcome, member)
        except GivenUp:
            pass
        except Exception as error:  # noqa: BLE001 - told to who waits, if no other line does better
            self.trouble = error
            member.abandon()
        except BaseException:
            member.abandon()
            raise

    def _wins(self, number: int, hold: Hold) -> bool:
        with self.engine.port.mutex():
            if self.over:
                return False
            self.over, self.won, self.stripe = True, hold, number
            self.winner = self.members[number]
        self.event.set()
        return True

    async def _call_off(self, winner: Acquisition) -> None:
        """Leave the other lines: nothing of them stays, and who stands there goes home."""
        engine, keeper = self.engine, self.engine.keeper
        losers = [member for member in self.members if member is not winner]
        under_way = [member.give_up() for member in losers]
        for member, tombstone in zip(losers, under_way, strict=True):
            claim = member.claim
            if not keeper.begun(claim):  # nor will it be, by who was given up
                continue
            result: Released | Unknown
            try:
                limit = engine.port.now() + engine.request_timeout
                result = await engine.backend.withdraw(claim, tombstone, limit)
            except HoldfastError as error:
                result = Unknown(str(error))
            except Exception:
                log.exception("leaving a line failed unexpectedly; it is tried again")
                result = Unknown("unexpected error")
            if isinstance(result, Released):
                keeper.settle(claim)
            else:
                keeper.abandon(claim)


async def _nothing() -> None:
    """The keeper says farewell for all claims."""
