"""The agenda: which hold to look at next, and when.

Contract: a heap in which only the latest entry of a hold counts (its `hint`); entries that are out
of date, or whose hold has ended, are dropped when they come up. Partner: `core/keeper.py`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator

from holdfast.core.hold import Hold
from holdfast.core.lease import Lose, Renew, Sleep

__all__ = ["TICK", "Agenda"]

TICK = 1.0
"""The keeper looks at least this often while it has anything to keep (law 1: timers are late)."""

TOGETHER = 0.2
"""What is due in this part of an interval is renewed together: twice what they are spread over."""


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

    def due(self, now: float, ready: deque[Hold]) -> list[tuple[Hold, str]]:
        """What is over now, and why; what is due for renewal is put in `ready`."""
        over: list[tuple[Hold, str]] = []
        soon = math.inf
        for hold in self.until(now):
            match hold.step(now):
                case Renew():
                    ready.append(hold)
                    soon = min(soon, TICK, TOGETHER * (hold.renew_every or TICK))
                    self.put(hold, hold.until)  # while it waits for its turn (law 5)
                case Lose(reason):
                    over.append((hold, reason))
                case Sleep(moment):
                    self.put(hold, moment)
        if soon < math.inf:
            self._take_along(now + soon, ready)
        return over

    def _take_along(self, slack: float, ready: deque[Hold]) -> None:
        """What would be due for renewal soon goes with the others: one batch, not many (law 6)."""
        for hold in list(self.until(slack)):
            if hold.hint != hold.until and hold.renew_at <= slack:
                ready.append(hold)
            self.put(hold, hold.due if hold.due > slack else hold.until)

    def next(self) -> float:
        """When to look again; never, if there is nothing."""
        heap = self._heap
        while heap and (heap[0][2].end or heap[0][2].hint != heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf
