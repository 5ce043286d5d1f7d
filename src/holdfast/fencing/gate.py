"""A gate in this process: for a resource in memory, or one that only this process writes.

Contract: `check` compares and notes in one step; `passing` keeps everybody else out until the
write is done as well. Hazard: between `check` and a write that follows it, another thread may pass
with a newer token and write first; so threads write inside `with gate.passing(lease)`.
Partner: `fencing/aio.py`, whose gate is for tasks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

from holdfast.fencing.tokens import Token, stale, token_of

__all__ = ["Gate", "Mark"]


class Mark:
    """The highest token that was seen. Not safe by itself: whoever has it sees to that."""

    __slots__ = ("highest", "name")

    def __init__(self, name: str, highest: int) -> None:
        self.name = name
        self.highest = highest

    def check(self, lease: Token) -> int:
        token = token_of(lease)
        if token < self.highest:
            raise stale(self.name, token, self.highest)
        self.highest = token
        return token


class Gate:
    """`name` is for messages; `highest` what was seen before, if somebody kept it."""

    def __init__(self, name: str = "the resource", *, highest: int = 0) -> None:
        self._mark = Mark(name, highest)
        self._mutex = threading.RLock()

    @property
    def highest(self) -> int:
        """The highest token that has passed; 0 before the first."""
        return self._mark.highest

    def check(self, lease: Token) -> int:
        """Compare, note and return the token; `StaleFence` if a newer one has passed before. For
        writes that nobody can get in between: those of one thread, or of one step of a task."""
        with self._mutex:
            return self._mark.check(lease)

    @contextlib.contextmanager
    def passing(self, lease: Token) -> Generator[int]:
        """`with gate.passing(lease):` the body is one step with the comparison: nobody else passes
        until it ends. Do not wait for locks in there."""
        with self._mutex:
            yield self._mark.check(lease)

    def __repr__(self) -> str:
        return f"<Gate {self._mark.name!r} highest={self.highest}>"
