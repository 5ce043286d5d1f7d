"""Quarantine: whether a node may have forgotten a vote that still matters (R36).

Contract: a node's vote counts only when the longest lease there may be, and the drift of the clocks
over it, have passed since the node started; and, where it is seen that another process answers at
its address than before, since this client first saw that one. The first is what the node says (its
uptime, in whole seconds, by a clock that can be set), the second needs nobody's word. A node that
writes every vote to its disk before it answers forgets nothing, and is exempt: if it did so from
its start on, and as far as we know before, too.
Partner: `nodes.py`, which introduces every new connection.
"""

from __future__ import annotations

import math

__all__ = ["Memory"]

WHOLE_SECONDS = 1.0
"""Redis counts its uptime by the ticks of a second, so it may be so much less than it says."""


class Memory:
    """What one client knows about the memory of one node."""

    __slots__ = ("_durable", "_span", "counts_at", "run_id")

    def __init__(self, span: float) -> None:
        """`span`: how long a node is quarantined; 0: never."""
        self._span = span
        self._durable = True  # nothing else is known yet
        self.run_id = ""
        self.counts_at = math.inf  # until it has introduced itself

    def met(self, run_id: str, uptime: float, durable: bool, now: float) -> None:
        """A connection was made, and `now` is after what it said."""
        known, self.run_id = self.run_id, run_id
        exempt, self._durable = durable and self._durable, durable
        if not self._span:
            self.counts_at = -math.inf
        elif run_id != known:
            passed = 0.0 if known else max(0.0, uptime - WHOLE_SECONDS)
            self.counts_at = -math.inf if exempt else now + self._span - passed

    def counts(self, moment: float) -> bool:
        """Whether a vote that was asked for at this moment counts. **Hazard**: not when it is
        counted. A client may have been paused in between, and the token rests on the node's clock
        at the time of its vote (docs/concepts/redlock.md)."""
        return moment >= self.counts_at

    def remaining(self, now: float) -> float:
        """Seconds until it counts; 0 when it does, or was not met yet."""
        return max(0.0, self.counts_at - now) if self.counts_at < math.inf else 0.0
