"""A barrier: so many parties wait until all are there, and go on together; then again.

Contract: one cell, changed by compare-and-set, has the generation and who has arrived in it. Who
waits is *present*: it holds a shared claim of `barrier:NAME`, with its party's id in what operators
see. A generation is broken for all its parties when one of them dies, leaves or waits in vain, and
stays so until `reset`. The last to arrive looks whether all others are present, and ends the
generation by the same write that counts it.

Everybody waits for the cell, and is told at once what is written there. A death writes nothing, so
who waits compares the arrived with the present every third of a lease, which is what it takes a
store to notice a death anyway; the first who misses somebody breaks the generation for all.

Law 2: ids recognise an arrival whose answer was lost, in its generation and in the one after it.
Law 4: who is interrupted leaves its claim to the keeper, and is missed.
Partners: `skins/*/barrier.py`; `values.py`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.deadline import deadline_of, left_of
from holdfast.core.handle import refused
from holdfast.core.hold import Hold
from holdfast.core.names import checked_name
from holdfast.core.options import LockOptions, Want, want
from holdfast.errors import (
    AcquireTimeout,
    BrokenBarrier,
    HoldfastError,
    Misconfigured,
    Unavailable,
    Unsupported,
)
from holdfast.toolbox.values import (
    OFTEN,
    change,
    checked_keep,
    holders,
    need,
    read,
    understood,
    until_changed,
    whole,
)
from holdfast.types import Busy, Capabilities, Cell, Mode

__all__ = ["Party", "Plan", "abort", "plan", "reset", "state"]

PREFIX = "barrier:"
PARTY = "party"
"""The key of a party's id in what operators see of its claim."""

MOST = 1024
"""Parties: their ids must fit in a cell."""

ENDS = 64
"""How many generations' ends are remembered, for who is slow to look."""

TRIPPED, RESET = "t", "r"
GONE = "a party died, or left"


@dataclass(slots=True, eq=False)
class Plan:
    """A checked wish."""

    name: str
    parties: int
    want: Want
    keep: float
    last: Cell | None = None  # as this object saw it last

    @property
    def cell(self) -> str:
        return PREFIX + self.name


def plan(
    name: str,
    parties: int,
    capabilities: Capabilities,
    ttl: float,
    timeout: float,
    keep: float,
    metadata: Mapping[str, str] | None,
) -> Plan:
    need(capabilities, "a barrier", Mode.SHARED)
    if not capabilities.inspection:
        raise Unsupported("a barrier must see who is there, and this backend cannot show it")
    checked_name(name)
    if whole("parties", parties) > MOST:
        raise Misconfigured(f"parties={parties}: {MOST} at most")
    options: LockOptions = {"ttl": ttl, "timeout": timeout}
    if metadata is not None:
        options["metadata"] = metadata
        if PARTY in metadata:
            raise Misconfigured(f"metadata cannot set {PARTY!r}: the barrier says that itself")
    presence = want(PREFIX + name, Mode.SHARED, options, capabilities)
    return Plan(name, parties, presence, checked_keep(keep))


# -- the state -------------------------------------------------------------------------------------


@dataclass(slots=True)
class State:
    parties: int
    generation: int = 0
    arrived: list[str] = field(default_factory=list[str])
    broken: str = ""  # why, if it is
    last: list[str] = field(default_factory=list[str])  # who was in the generation before
    ends: str = ""  # how the generations before ended, the newest at the end

    def data(self) -> bytes:
        said = [self.parties, self.generation, self.arrived, self.broken, self.last, self.ends]
        return json.dumps(said, separators=(",", ":")).encode()

    def ended(self, how: str, last: list[str]) -> State:
        ends = (self.ends + how)[-ENDS:]
        return State(self.parties, self.generation + 1, [], "", last, ends)


def _state(plan: Plan, cell: Cell | None) -> State:
    if cell is None:
        return State(plan.parties)
    with understood(plan.name):
        state = State(*json.loads(cell.value))
    if state.parties != plan.parties:
        raise Misconfigured(
            f"the barrier {plan.name!r} is one of {state.parties} parties, and not of "
            f"{plan.parties}: use another name, or agree"
        )
    return state


async def state(engine: Engine, plan: Plan) -> State:
    return _state(plan, await read(engine, plan.cell))


async def abort(engine: Engine, plan: Plan) -> None:
    """Broken for who waits and for who comes, until `reset`."""
    sent_on: int | None = None  # the generation that was to be broken by it

    def step(cell: Cell | None, unsure: bool) -> tuple[bytes | None, None]:
        nonlocal sent_on
        now = _state(plan, cell)
        since = 0 if sent_on is None else now.generation - sent_on
        if now.broken or (unsure and since > 0 and now.ends[-since:][:1] == RESET):
            return None, None  # what is broken, or was and is reset by now, is not broken again
        sent_on = now.generation
        return replace(now, broken="somebody aborted it").data(), None

    now = await read(engine, plan.cell)  # what was reset before this does not count as ours
    _, plan.last = await change(engine, plan.cell, step, plan.keep, now)


async def reset(engine: Engine, plan: Plan) -> None:
    """Empty and whole again; who waits is told that it is broken."""
    sent_on: int | None = None  # the generation that was to end by it

    def step(cell: Cell | None, unsure: bool) -> tuple[bytes | None, None]:
        nonlocal sent_on
        now = _state(plan, cell)
        if not now.arrived and not now.broken:
            return None, None
        if unsure and sent_on is not None and now.generation > sent_on:
            return None, None  # it has ended, and who came since was not meant
        sent_on = now.generation
        return now.ended(RESET, now.arrived).data(), None

    _, plan.last = await change(engine, plan.cell, step, plan.keep)


# -- a party ---------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """What became of an arrival."""

    generation: int
    number: int
    what: str  # one of the words below


WAITS, MET, BROKEN = "waits", "met", "broken"
LAST = "last"  # it would be, if all who have arrived are still there
ABSENT = "absent"  # it must be present before it arrives
ALONE = "alone"  # it would have to wait, and shall not


class Party:
    """One call of `wait`, from its first request until nothing of it is left."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self.engine = engine
        self.plan = plan
        self.id = secrets.token_hex(8)
        info = {**plan.want.metadata, PARTY: self.id}
        presence = replace(plan.want, metadata=info, _identity=None, _info=None)
        self.acquisition = Acquisition(engine, presence)
        self.generation: int | None = None  # in which it has arrived, if it has

    def abandon(self) -> None:
        """Never blocks and may be called whatever happened."""
        self.acquisition.abandon()

    async def run(self, timeout: float) -> int:
        """The number of our arrival, when all have."""
        engine, plan = self.engine, self.plan
        deadline = deadline_of(engine.port, timeout)
        arrival, cell = await self._arrive(None, timeout)
        if arrival.what != ABSENT:
            return self._verdict(arrival, cell)
        # To be present is not to wait: nobody is in the way, and the store may take its time.
        left = left_of(engine.port, deadline)
        left = left if left < 0 else max(left, engine.request_timeout)
        hold = await self.acquisition.run(True, left)
        if isinstance(hold, Busy):
            raise refused(plan.want, hold, left)
        return await self._present(hold, timeout, deadline)

    async def _present(self, hold: Hold, timeout: float, deadline: float) -> int:
        engine = self.engine
        try:
            arrival, cell = await self._arrive(hold, timeout)
            if arrival.what == WAITS:
                self.generation = arrival.generation
                index = await self._wait(hold, arrival, cell, deadline)
            else:
                index = self._verdict(arrival, cell)
        except Exception as error:
            if not isinstance(error, BrokenBarrier):
                await self.leave()
            self.generation = None
            await engine.release(hold, self.acquisition)
            raise
        self.generation = None
        await engine.release(hold, self.acquisition)
        return index

    async def _arrive(self, hold: Hold | None, timeout: float) -> tuple[Arrival, Cell | None]:
        """Be counted. The last one need not be present, since nobody will wait for it; but it looks
        whether the others are: who died here, or left with its write under way, must not meet."""
        arrival, cell = await self._count(hold, timeout, None)
        while arrival.what == LAST:
            if await self._missing(cell):
                cell = await self._break(arrival.generation, GONE, mine=False)
            arrival, cell = await self._count(hold, timeout, cell)
        return arrival, cell

    async def _count(
        self, hold: Hold | None, timeout: float, complete: Cell | None
    ) -> tuple[Arrival, Cell | None]:
        """`complete`: all others were present when this was there."""
        plan, mine = self.plan, self.id
        sent_on: int | None = None
        whole_at = 0 if complete is None else complete.version

        def step(cell: Cell | None, unsure: bool) -> tuple[bytes | None, Arrival]:
            nonlocal sent_on
            now = _state(plan, cell)
            if mine in now.arrived:
                return None, Arrival(now.generation, now.arrived.index(mine), WAITS)
            if mine in now.last and now.ends.endswith(TRIPPED):
                return None, Arrival(now.generation - 1, now.last.index(mine), MET)
            if unsure and sent_on is not None and now.generation > sent_on + 1:
                raise Unavailable(
                    f"whether {plan.name!r} has counted us is not known: the answer was lost, and "
                    "others have met since"
                )
            if now.broken:
                return None, Arrival(now.generation, 0, BROKEN)
            arrived = [*now.arrived, mine]
            arrival = Arrival(now.generation, len(arrived) - 1, WAITS)
            if len(arrived) >= plan.parties:
                if now.arrived and (cell is None or cell.version != whole_at):
                    return None, arrival._replace(what=LAST)
                sent_on = now.generation
                return now.ended(TRIPPED, arrived).data(), arrival._replace(what=MET)
            if hold is None:
                return None, arrival._replace(what=ALONE if timeout == 0 else ABSENT)
            sent_on = self.generation = now.generation  # we may be in it from here on
            return replace(now, arrived=arrived).data(), arrival

        arrival, cell = await change(self.engine, plan.cell, step, plan.keep, plan.last)
        plan.last = cell  # other threads write there too: only a guess, from here on
        return arrival, cell

    def _verdict(self, arrival: Arrival, cell: Cell | None) -> int:
        if arrival.what == MET:
            return arrival.number
        name = self.plan.name
        if arrival.what == BROKEN:
            raise _broken(name, _state(self.plan, cell).broken)
        raise AcquireTimeout(
            f"the other parties of {name!r} are not all there at the moment (we did not wait)"
        )

    async def _wait(self, hold: Hold, arrival: Arrival, cell: Cell | None, deadline: float) -> int:
        engine, plan, port = self.engine, self.plan, self.engine.port
        every = hold.claim.ttl / OFTEN
        look_at = port.now() + every
        while True:
            if (index := self._met(arrival, cell)) is not None:
                return index
            now = port.now()
            why = ""
            if not engine.trusted(hold):
                why = "a party's presence was lost: the store did not answer it for too long"
            elif now >= deadline:
                why = "a party waited in vain"
            elif now >= look_at:
                look_at = now + every
                why = await self._why_not(cell)
            if why:
                cell = await self._break(arrival.generation, why)
                continue
            cell = await until_changed(engine, plan.cell, cell, min(deadline, look_at))

    def _met(self, arrival: Arrival, cell: Cell | None) -> int | None:
        """Our number, if all have met; None as long as we wait."""
        now, name = _state(self.plan, cell), self.plan.name
        since = now.generation - arrival.generation
        if since == 0 and self.id in now.arrived:
            if now.broken:
                raise _broken(name, now.broken)
            return None
        if not 0 < since <= len(now.ends):
            raise _broken(name, "what became of this generation is not known any more")
        if now.ends[-since] == TRIPPED:
            return arrival.number
        raise _broken(name, "somebody reset it")

    async def _why_not(self, cell: Cell | None) -> str:
        try:
            return GONE if await self._missing(cell) else ""
        except Unavailable:
            return ""  # our own presence will tell

    async def _missing(self, cell: Cell | None) -> bool:
        """Whether somebody has arrived and is not present."""
        there = await holders(self.engine, self.plan.want.name)
        present = {holder.info.get(PARTY) for holder in there}
        return not set(_state(self.plan, cell).arrived) <= present

    async def _break(self, generation: int, why: str, *, mine: bool = True) -> Cell | None:
        """Break it for all, if it is still under way; what is there then."""
        plan = self.plan

        def step(cell: Cell | None, unsure: bool) -> tuple[bytes | None, None]:
            now = _state(plan, cell)
            if now.generation != generation or now.broken:
                return None, None
            if mine and self.id not in now.arrived:
                return None, None
            return replace(now, broken=why).data(), None

        _, cell = await change(self.engine, plan.cell, step, plan.keep)
        plan.last = cell
        return cell

    async def leave(self) -> None:
        """Tell the others that they wait in vain. If that fails too, or our client was closed and
        should make no connection any more, we will be missed."""
        if self.generation is not None and not self.engine.closed:
            try:
                await self._break(self.generation, "a party left")
            except HoldfastError:
                pass


def _broken(name: str, why: str) -> BrokenBarrier:
    return BrokenBarrier(
        f"the barrier {name!r} is broken: {why}. Begin again when all agree to, with reset()"
    )
