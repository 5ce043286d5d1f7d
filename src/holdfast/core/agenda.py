"""The agenda: which hold to look at next, and when.

Contract: a heap in which only the latest entry of a hold counts (its `hint`); entries that are out
of date, or whose hold has ended, are dropped when they come up. Partner: `core/keeper.py`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator

from holdfast.core.hold import Hold

__all__ = ["Agenda"]


class Agenda:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hold]] = []
        self._order = itertools.count()  # holds themselves have no order

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, hold: Hold, moment: float) -> None:
        hold.hint = moment
        heapq.heappush(self._heap, (moment, next(self._order), hold))

    def renew(self, holds: Iterable[Hold]) -> None:
        """Begin anew with these holds, each when it is due."""
        self._heap.clear()
        for hold in holds:
            self.put(hold, hold.due)

    def until(self, moment: float) -> Iterator[Hold]:
        """Take off what is due by then. What is put back later than that comes another time."""
        while self._heap and self._heap[0][0] <= moment:
            due, _, hold = heapq.heappop(self._heap)
            if not hold.end and hold.hint == due:
                yield hold

    def next(self) -> float:
        """When to look again; never, if there is nothing."""
        heap = self._heap
        while heap and (heap[0][2].end or heap[0][2].hint != heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf
