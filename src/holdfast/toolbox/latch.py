"""A latch: opens when it was counted down so many times, and stays open.

Contract: one cell, changed by compare-and-set. Law 2: a count that got no answer must count once.
The state numbers all counts and remembers who made the last MEMORY of them. A count that was sent
on top of number n can only have become number n + 1: so looking whether that one is ours decides
it, for ever; and if it is so long ago that nobody remembers, the caller is told that it is not
known, and nothing is counted twice.
Partners: `skins/*/latch.py`; `values.py`.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import Any

from holdfast.core.acquire import Engine
from holdfast.core.deadline import deadline_of
from holdfast.core.names import checked_name
from holdfast.core.options import checked_timeout
from holdfast.errors import Misconfigured, Unavailable
from holdfast.toolbox.values import (
    change,
    checked_keep,
    need,
    read,
    understood,
    until_changed,
    whole,
)
from holdfast.types import Capabilities, Cell

__all__ = ["Plan", "count", "count_down", "plan", "wait"]

PREFIX = "latch:"
HEADER = struct.Struct(">QQQ")  # how many it was made for, how many are left, how often it counted
ID = 8
MEMORY = 256
"""So many counts are remembered by their ids."""


@dataclass(slots=True, eq=False)
class Plan:
    """A checked wish."""

    name: str
    count: int
    timeout: float
    keep: float
    last: Cell | None = None  # as this object saw it last: the next count begins with it

    @property
    def cell(self) -> str:
        return PREFIX + self.name


@dataclass(slots=True)
class _State:
    left: int
    counts: int
    ids: bytes  # of the last counts, the newest at the end

    def made(self, number: int) -> bytes | None:
        """Who made this count; None if that is not remembered."""
        back = (self.counts - number + 1) * ID
        return self.ids[len(self.ids) - back :][:ID] if 0 < back <= len(self.ids) else None


def plan(name: str, count: int, capabilities: Capabilities, timeout: float, keep: float) -> Plan:
    need(capabilities, "a latch")
    checked_name(name)
    checked_name(PREFIX + name)  # as the store hears it
    count = whole("count", count)
    return Plan(name, count, checked_timeout(timeout), checked_keep(keep))


def _state(plan: Plan, cell: Cell | None) -> _State:
    if cell is None:
        return _State(plan.count, 0, b"")
    with understood(plan.name):
        made_for, left, counts = HEADER.unpack_from(cell.value)
    if made_for != plan.count:
        raise Misconfigured(
            f"the latch {plan.name!r} was made for {made_for} counts, and not for {plan.count}: "
            "use another name, or agree"
        )
    return _State(left, counts, cell.value[HEADER.size :])


async def count_down(engine: Engine, plan: Plan, n: Any) -> int:
    """How many are left then."""
    n = whole("n", n)
    mine = secrets.token_bytes(ID)
    sent_on: int | None = None  # the number of counts before ours, if we have sent it

    def step(cell: Cell | None, unsure: bool) -> tuple[bytes | None, int]:
        nonlocal sent_on
        state = _state(plan, cell)
        if unsure and sent_on is not None and state.counts > sent_on:
            made = state.made(sent_on + 1)
            if made is None:
                raise Unavailable(
                    f"whether {plan.name!r} was counted down is not known: the answer was lost, "
                    f"and {state.counts - sent_on} others have counted since. Look at count()"
                )
            if made == mine:
                return None, state.left
        if state.left == 0:
            return None, 0
        sent_on = state.counts
        left = max(0, state.left - n)
        ids = (state.ids + mine)[-MEMORY * ID :]
        return HEADER.pack(plan.count, left, state.counts + 1) + ids, left

    left, plan.last = await change(engine, plan.cell, step, plan.keep, plan.last)
    return left


async def count(engine: Engine, plan: Plan) -> int:
    return _state(plan, await read(engine, plan.cell)).left


async def wait(engine: Engine, plan: Plan, timeout: float) -> bool:
    """Until it is open; False: time ran out before."""
    deadline = deadline_of(engine.port, timeout)
    cell = await read(engine, plan.cell)
    while _state(plan, cell).left:
        if engine.port.now() >= deadline:
            return False
        cell = await until_changed(engine, plan.cell, cell, deadline)
    return True
