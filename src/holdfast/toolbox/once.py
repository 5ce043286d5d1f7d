"""Once: a value that one computes and everybody reads, until its time is over.

Contract: `get` reads the value in one round trip. If there is none, the first to come computes it
under an exclusive claim, `once:NAME`, and the others wait for that claim as readers, who are let in
all together when it is done; if it failed or its maker died, they stand in line to be the next. In
the last part of a value's time, `ahead`, one who reads it computes the next, and the others go on
reading the old one.

A value is in two cells: `fresh` until it should be replaced, `kept` until it is over. Both are
written under the claim's token, so what a slow old computation made never replaces newer work; and
its time counts from before the computation began (law 1). Hazard: who was stopped between its two
writes comes back when another has written only the first, or has not come that far; so `fresh`
hears of a token before anything is computed under it. And who is refused with a value may have it
forgotten between the two; so who wrote both looks whether the first is still there.

`use` reads it under a shared claim of `using:NAME`, which a computation takes alone: a value that
is in use is not replaced. Hazard: who uses it and computes would wait for itself, so the skin says
whether the caller is `inside`. Partners: `skins/*/once.py`; `values.py`; `under.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.deadline import deadline_of, left_of
from holdfast.core.handle import refused
from holdfast.core.hold import Hold
from holdfast.core.names import checked_name
from holdfast.core.options import LockOptions, Want, checked_timeout, seconds, want
from holdfast.errors import AcquireTimeout, Closed, Misconfigured, Unavailable, Unsupported
from holdfast.toolbox.under import under
from holdfast.toolbox.values import decode, encode, forget, need, read, write
from holdfast.types import Busy, Capabilities, Mode

__all__ = ["Compute", "Recipe", "Use", "get", "invalidate", "recipe"]

log = logging.getLogger("holdfast")

Compute = Callable[[], Awaitable[Any]]

FRESH, KEPT = "once-fresh:", "once-kept:"
COMPUTING, USING = "once:", "using:"

AHEAD = 0.1
"""The part of its time in which a value is replaced, unless the caller says otherwise."""

AGAIN = 0.1
"""After a replacement failed: the part of `ahead` in which this object does not try another."""

VAIN = 3
"""So often one call computes in vain: its claim was lost each time, or its value over at once."""


@dataclass(slots=True, eq=False)
class Recipe:
    """A checked wish."""

    name: str
    ttl: float
    ahead: float
    timeout: float
    alone: Want  # of who computes
    behind: Want | None  # of who waits for that; None: the store has no shared claims
    use: Want | None
    replace: Want | None
    again_at: float = -math.inf

    @property
    def sharing(self) -> Want:
        if self.use is None:
            raise Unsupported(
                "hold() needs shared claims, which this backend does not have: use get(), and read "
                "the value again when it turns out to be replaced"
            )
        return self.use


def recipe(
    name: str,
    ttl: float,
    capabilities: Capabilities,
    ahead: float | None,
    lease: float,
    timeout: float,
    metadata: Mapping[str, str] | None,
) -> Recipe:
    need(capabilities, "once", Mode.EXCLUSIVE, fencing=True)
    checked_name(name)
    checked_name(FRESH + name)  # the longest that the store hears of it
    ttl = seconds("ttl", ttl, "a value is for a time, and not for none")
    if ahead is None:
        ahead = AHEAD * ttl
    elif ahead != 0:
        ahead = seconds("ahead", ahead, "0: a value is replaced when its time is over")
    if ahead >= ttl:
        raise Misconfigured(f"ahead={ahead:g} of ttl={ttl:g}: it would be replaced all the time")
    options: LockOptions = {"ttl": lease, "timeout": timeout}
    if metadata is not None:
        options["metadata"] = metadata

    def claim(kind: str, mode: Mode) -> Want:
        return want(kind + name, mode, options, capabilities)

    shared = Mode.SHARED in capabilities.modes
    use = claim(USING, Mode.SHARED) if shared else None
    if use is not None:
        use.reentrant = True  # else a replacement that stands in line between would stop both
    return Recipe(
        name,
        ttl,
        ahead,
        checked_timeout(timeout),
        claim(COMPUTING, Mode.EXCLUSIVE),
        claim(COMPUTING, Mode.SHARED) if shared else None,
        use,
        claim(USING, Mode.EXCLUSIVE) if shared else None,
    )


async def _look(engine: Engine, recipe: Recipe) -> tuple[bytes | None, bool]:
    """What is there, and whether it is fresh."""
    cell = await read(engine, FRESH + recipe.name)
    if cell is not None:
        return cell.value, True
    cell = await read(engine, KEPT + recipe.name)
    return (None if cell is None else cell.value), False


async def get(
    engine: Engine, recipe: Recipe, compute: Compute, timeout: float, inside: bool
) -> Any:
    deadline = deadline_of(engine.port, timeout)
    return await _get(_Work(engine, recipe, compute, deadline), inside)


async def _get(work: _Work, inside: bool) -> Any:
    engine, recipe, port = work.engine, work.recipe, work.engine.port
    while True:
        data, fresh = await _look(engine, recipe)
        if data is not None and (fresh or inside or port.now() < recipe.again_at):
            return decode(recipe.name, data)
        if inside:
            raise Misconfigured(
                f"the value of {recipe.name!r} is over, and this thread or task is inside hold() "
                "of it: it would wait for itself. Leave hold() before you ask for another"
            )
        data = await (work.first() if data is None else work.ahead(data))
        if data is not None:
            return decode(recipe.name, data)


class _Work:
    """One `get` that did not find a fresh value."""

    def __init__(self, engine: Engine, recipe: Recipe, compute: Compute, deadline: float) -> None:
        self.engine = engine
        self.recipe = recipe
        self.compute = compute
        self.deadline = deadline
        self.asked = False  # whether we have asked for the claim without waiting
        self.waited = False  # whether we have waited for somebody's computation
        self.busy: Busy | None = None  # who was in the way, if time ran out: not that of `compute`
        self.vain = 0  # how often it was computed, and the claim lost meanwhile

    def _refused(self, want: Want, busy: Busy, left: float) -> AcquireTimeout:
        self.busy = busy
        return refused(want, busy, left)

    async def ahead(self, old: bytes) -> bytes | None:
        """Replace a value that is still good. If that fails, it goes on being good."""
        engine, recipe = self.engine, self.recipe
        try:
            made = await under(engine, recipe.alone, 0, self._alone)
        except (Closed, Misconfigured, Unsupported):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a computation may raise
            if self.busy is not None:  # it is in use
                return old
            recipe.again_at = engine.port.now() + AGAIN * recipe.ahead
            log.warning("%r could not be replaced ahead of its end: %r", recipe.name, error)
            return old
        return old if isinstance(made, Busy) else made

    async def first(self) -> bytes | None:
        """There is no value: compute it, or wait until somebody has. None: look again."""
        engine, recipe = self.engine, self.recipe
        if not self.asked:
            self.asked = True
            made = await under(engine, recipe.alone, 0, self._alone)
            if not isinstance(made, Busy):
                return made
            if left_of(engine.port, self.deadline) == 0:
                raise self._refused(recipe.alone, made, 0)
        left = left_of(engine.port, self.deadline)
        if recipe.behind is not None and not self.waited:
            self.waited = True
            busy = await under(engine, recipe.behind, left, _nothing)
            if isinstance(busy, Busy):
                raise self._refused(recipe.behind, busy, left)
            return None
        made = await under(engine, recipe.alone, left, self._alone)
        if isinstance(made, Busy):
            raise self._refused(recipe.alone, made, left)
        return made

    async def _alone(self, hold: Hold) -> bytes | None:
        """Inside the claim. Somebody may have been here between our look and our turn."""
        engine, recipe = self.engine, self.recipe
        data, fresh = await _look(engine, recipe)
        if fresh:
            return data
        if recipe.replace is None:
            return await self._make(hold, hold)
        deadline = self.deadline
        if data is not None:  # who uses it is waited for, but not for longer than there is time
            deadline = min(deadline, engine.port.now() + recipe.ahead)
        left = left_of(engine.port, deadline)
        made = await under(engine, recipe.replace, left, lambda gate: self._make(hold, gate))
        if isinstance(made, Busy):
            raise self._refused(recipe.replace, made, left)
        return made

    async def _make(self, hold: Hold, gate: Hold) -> bytes | None:
        engine, recipe, fence = self.engine, self.recipe, hold.fence
        kept, fresh = KEPT + recipe.name, FRESH + recipe.name
        if not await write(engine, fresh, None, fence, None):
            return None
        until = engine.port.now() + recipe.ttl
        data = encode(await self.compute())
        if not (engine.trusted(hold) and engine.trusted(gate)):
            log.warning("%r was computed for too long: its claim was lost", recipe.name)
            self.vain += 1
            if self.vain >= VAIN:
                raise Unavailable(
                    f"{recipe.name!r} was computed {self.vain} times, and its claim was lost each "
                    f"time: the store was away, or compute() kept this process from renewing it. "
                    f"It was asked for with lease={recipe.alone.ttl:g}"
                )
            return None
        if engine.port.now() >= until:
            log.warning("computing %r took longer than its ttl: it is not kept", recipe.name)
            return data
        if not await write(engine, kept, data, fence, until):
            return None
        if await write(engine, fresh, data, fence, until - recipe.ahead):
            cell = await read(engine, kept)
            if cell is None or cell.value != data:  # somebody was refused with it already
                await forget(engine, fresh, data)
        return data


async def _nothing(hold: Hold) -> None:
    """To have waited was all."""


async def invalidate(engine: Engine, recipe: Recipe, value: Any, timeout: float) -> None:
    """Forget the value: with `value` only if it is that one, which nobody is waited for."""
    names = KEPT + recipe.name, FRESH + recipe.name  # in this order: see `_make`
    if value is not None:
        data = encode(value)
        for name in names:
            await forget(engine, name, data)
        return

    async def alone(hold: Hold) -> None:
        for name in names:
            await write(engine, name, None, hold.fence, None)

    busy = await under(engine, recipe.alone, timeout, alone)
    if isinstance(busy, Busy):
        raise refused(recipe.alone, busy, timeout)


class Use:
    """One stay inside `hold()`, from its first request until it holds or nothing of it is left."""

    def __init__(self, engine: Engine, recipe: Recipe) -> None:
        self.engine = engine
        self.recipe = recipe
        self.acquisition = Acquisition(engine, recipe.sharing)

    def abandon(self) -> None:
        self.acquisition.abandon()

    async def run(self, compute: Compute, timeout: float, inside: bool) -> tuple[Hold | Busy, Any]:
        engine, recipe = self.engine, self.recipe
        deadline = deadline_of(engine.port, timeout)
        vain = 0
        while vain < VAIN:
            began = engine.port.now()
            work = _Work(engine, recipe, compute, deadline)
            try:
                await _get(work, inside)
            except AcquireTimeout:
                if work.busy is None:  # of `compute`
                    raise
                return work.busy, None
            left = left_of(engine.port, deadline)
            hold = await self.acquisition.run(left != 0, left)
            if isinstance(hold, Busy):
                return hold, None
            data, _ = await _look(engine, recipe)
            if data is not None:
                return hold, decode(recipe.name, data)
            await engine.release(hold, self.acquisition)  # it was over just then
            self.acquisition = Acquisition(engine, recipe.sharing)
            # One that was over before its time was invalidated: others go on, and so do we.
            vain += engine.port.now() >= min(began + recipe.ttl, deadline)
        raise Unavailable(
            f"the value of {recipe.name!r} was over before it could be used, {VAIN} times: "
            f"ttl={recipe.ttl:g} is too short for computing it, or it is invalidated all the time"
        )
