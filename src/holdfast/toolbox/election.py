"""An election: one candidate leads, the others stand in line, and everybody may know who leads.

Contract: to lead is to hold the exclusive claim `election:NAME`, so a leader stops being one by its
own clock before the next can be (laws 1 and 5). What it proclaims is in a cell, written under the
claim's token: a leader of the past cannot speak for a later one. A cell alone proves nothing, since
who died could not take its word back; so who leads is what the cell says *and* the line confirms.

Observers wait for the cell. A leader that resigns, and the next that is granted, write it: both are
news at once. That somebody died with nobody in line calls nobody, so who watches a leader looks
at the line every third of its lease; where a store cannot show its line, that vacancy is not seen.
Partners: `skins/*/election.py`; `values.py`.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import Any

from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.deadline import deadline_of
from holdfast.core.hold import Hold
from holdfast.core.names import checked_name
from holdfast.core.options import Want
from holdfast.errors import HoldfastError, Misconfigured
from holdfast.toolbox.values import (
    OFTEN,
    decode,
    holders,
    need,
    read,
    understood,
    until_changed,
    write,
)
from holdfast.types import Busy, Capabilities, Cell, Mode

__all__ = ["Candidacy", "Leader", "Watch", "check", "leader", "line_of", "proclaim", "withdraw"]

log = logging.getLogger("holdfast")

PREFIX = "election:"
HEADER = struct.Struct(">Qd")  # the token, and the lease's ttl


@dataclass(slots=True, frozen=True)
class Leader:
    """Who leads: what it proclaimed, and its fencing token."""

    value: Any
    fence: int


def line_of(name: str) -> str:
    """Where who wants to lead stands, and the cell in which who leads speaks."""
    return PREFIX + checked_name(name)


def check(capabilities: Capabilities, want: Want) -> Want:
    need(capabilities, "an election", Mode.EXCLUSIVE, fencing=True)
    if want.reentrant:
        raise Misconfigured("an election cannot be reentrant: who leads, leads")
    return want


# -- the leader ------------------------------------------------------------------------------------


class Candidacy(Acquisition):
    """As `Acquisition`: stand in line, lead, and say so before anybody relies on it."""

    __slots__ = ("data",)

    def __init__(self, engine: Engine, want: Want, data: bytes) -> None:
        super().__init__(engine, want)
        self.data = data

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        hold = await super().run(blocking, timeout)
        if isinstance(hold, Busy):
            return hold
        try:
            await proclaim(self.engine, hold, self.data)
        except HoldfastError:
            await self.engine.release(hold, self)
            raise
        return hold


async def proclaim(engine: Engine, hold: Hold, data: bytes) -> None:
    """Have everybody know. `LeaseLost` if somebody else leads by now."""
    if not engine.trusted(hold):
        engine.check_deadline(hold)
        raise engine.over(hold)
    claim = hold.claim
    assert hold.fence is not None  # `check` has seen to it
    data = HEADER.pack(hold.fence, claim.ttl) + data
    if not await write(engine, claim.name, data, hold.fence, None):
        engine.keeper.lose(hold, "a later leader has spoken", gone=False)
        raise engine.over(hold)


async def withdraw(engine: Engine, hold: Hold) -> None:
    """Before the claim is given back: nobody leads. What fails here the line makes good."""
    if engine.trusted(hold) and not engine.port.nested():
        try:
            await write(engine, hold.claim.name, None, hold.fence, None)
        except HoldfastError as error:
            log.warning("%r: could not say that nobody leads: %s", hold.claim.name, error)


# -- everybody else --------------------------------------------------------------------------------


async def leader(engine: Engine, name: str) -> Leader | None:
    cell = await read(engine, name)
    return None if cell is None or not await _leads(engine, name, cell) else _said(name, cell)


def _said(name: str, cell: Cell) -> Leader:
    return Leader(decode(name, cell.value[HEADER.size :]), _header(name, cell)[0])


def _header(name: str, cell: Cell) -> tuple[int, float]:
    """The token, and the lease's ttl."""
    with understood(name):
        fence, ttl = HEADER.unpack_from(cell.value)
    return fence, ttl


async def _leads(engine: Engine, name: str, cell: Cell) -> bool:
    """Whether who wrote this holds the claim."""
    if not engine.backend.capabilities.inspection:
        return True  # nobody can tell
    fence, _ = _header(name, cell)
    return any(holder.fence == fence for holder in await holders(engine, name))


class Watch:
    """What one observer has seen."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False
        self._cell: Cell | None = None
        self._told: Leader | None = None

    async def next(self, engine: Engine, timeout: float) -> tuple[bool, Leader | None]:
        """(True, who leads) at first, and whenever that has changed; (False, None): time is up."""
        port, name = engine.port, self._name
        deadline = deadline_of(port, timeout)
        watched = engine.backend.capabilities.inspection
        if not self._begun:
            await self._look(engine, await read(engine, name))
            self._begun = True
            return True, self._told
        while True:
            before = self._told
            limit = deadline
            if self._cell is not None and self._told is not None and watched:
                _, ttl = _header(name, self._cell)
                limit = min(deadline, port.now() + ttl / OFTEN)
            await self._look(engine, await until_changed(engine, name, self._cell, limit))
            if self._told != before:
                return True, self._told
            if port.now() >= deadline:
                return False, None

    async def _look(self, engine: Engine, cell: Cell | None) -> None:
        leads = cell is not None and await _leads(engine, self._name, cell)
        self._told = _said(self._name, cell) if leads and cell is not None else None
        self._cell = cell
