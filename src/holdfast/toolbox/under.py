"""Do something under a claim, and give it back whatever happens: the tools' own `with`.

Contract: law 4. The claim is known to the keeper before the store hears of it; an interrupt or a
cancellation anywhere hands it to the keeper without waiting, and an error of the work gives it back
at once, before it is raised, so that the next one need not wait for a clean-up.
Partner: `core/acquire.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.hold import Hold
from holdfast.core.options import Want
from holdfast.types import Busy

__all__ = ["under"]

R = TypeVar("R")


async def under(
    engine: Engine, want: Want, timeout: float, work: Callable[[Hold], Awaitable[R]]
) -> R | Busy:
    """What `work` returns, or who was in the way. `timeout`: -1 for ever, 0 not at all."""
    acquisition = Acquisition(engine, want)
    try:
        hold = await acquisition.run(timeout != 0, timeout)
        if isinstance(hold, Busy):
            return hold
        return await _then_give_back(acquisition, hold, work)
    except BaseException:
        acquisition.abandon()
        raise


async def _then_give_back(
    acquisition: Acquisition, hold: Hold, work: Callable[[Hold], Awaitable[R]]
) -> R:
    # A function of its own: Ctrl-C at the line of an inner `try` is not seen by the outer one.
    engine = acquisition.engine
    try:
        result = await work(hold)
    except Exception:
        await engine.release(hold, acquisition)
        raise
    await engine.release(hold, acquisition)
    return result
