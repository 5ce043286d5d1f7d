"""The sweeper: forgets what is over and nobody asked about again. Any client is one; none leads.

Contract: decides when a round is due and when it was the last; one that fails is tried again later.
What a round does is its strategy's: bounded, in the order of names, and going on where the last one
stopped. Partners: `leftovers.py`, and `connected.py` for rows that only a connection locks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.core.port import Port, Task
from holdfast.errors import HoldfastError

__all__ = ["Round", "Sweeper"]

log = logging.getLogger("holdfast")

EVERY = 60.0
"""Seconds of use between two rounds of a client."""

IDLE = 600.0
"""Seconds for which the row of a free name is kept: it is likely to be used again."""

Round = Callable[[bytes, float, float], Awaitable[tuple[int, bytes | None]]]
"""After this name, of what is idle for so long, until a deadline: how much was forgotten, and after
which name to go on (empty: at the beginning; None: that was the end)."""


class Sweeper:
    def __init__(self, port: Port, work: Round, patience: float) -> None:
        self._port = port
        self._round = work
        self._patience = patience  # seconds for a round that nobody asked for
        self._next = port.now() + EVERY * port.random()
        self._task: Task | None = None
        self._after = b""

    async def sweep(self, idle: float, deadline: float) -> int:
        """All rounds: how much was forgotten."""
        count = 0
        after: bytes | None = b""
        while after is not None:
            swept, after = await self._round(after, idle, deadline)
            count += swept
        return count

    def perhaps(self, now: float) -> None:
        """Begin a round beside the caller, if it is time."""
        if not self._due(now) or (self._task is not None and self._task.alive):
            return
        try:
            self._task = self._port.task(self._one, self._farewell, "holdfast-sweep")
            self._task.start()
        except RuntimeError:  # there is no thread for it, or an end to everything: another time
            pass

    async def tidy(self) -> None:
        """Make a round, if it is time."""
        if self._due(self._port.now()):
            await self._one()

    async def stop(self, deadline: float) -> None:
        if self._task is not None:
            await self._task.join(deadline)

    def _due(self, now: float) -> bool:
        if now < self._next:
            return False
        self._next = now + EVERY * (0.5 + self._port.random())
        return True

    async def _one(self) -> None:
        try:
            _, after = await self._round(self._after, IDLE, self._port.now() + self._patience)
            self._after = after or b""
        except HoldfastError as error:
            log.info("sweeping was not possible and is tried again later: %s", error)
        except Exception:
            log.exception("sweeping failed unexpectedly; it is tried again later")

    async def _farewell(self) -> None:
        """Whoever comes next sweeps."""
