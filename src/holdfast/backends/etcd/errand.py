"""One does it for all who need it at the same time, and they share what became of it.

Contract: whoever is first does the work; those who come meanwhile wait for it, each as long as it
may. If it was interrupted, or came to nothing for want of its own time, the next one does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.core.port import Event, Port

__all__ = ["Errand"]

T = TypeVar("T")


class _Turn(Generic[T]):
    __slots__ = ("over", "results")

    def __init__(self, over: Event) -> None:
        self.over = over
        self.results: list[T] = []  # one, unless it was interrupted


class Errand(Generic[T]):
    __slots__ = ("_port", "_turn")

    def __init__(self, port: Port) -> None:
        self._port = port
        self._turn: _Turn[T] | None = None  # under way

    async def do(
        self, work: Callable[[], Awaitable[T]], settles: Callable[[T], bool], deadline: float
    ) -> T | None:
        """What `work` returned, here or elsewhere; None: not within the deadline. If somebody
        else's result does not settle it, it is done again: so `work` looks first whether it is
        still needed."""
        mine = _Turn[T](self._port.event())
        try:
            while True:
                with self._port.mutex():
                    turn = self._turn = self._turn or mine
                if turn is mine:
                    result = await work()
                    mine.results.append(result)
                    return result
                if not await turn.over.wait(deadline):
                    return None
                if turn.results and settles(turn.results[0]):
                    return turn.results[0]
        finally:
            if self._turn is mine:
                self._turn = None
            mine.over.set()
