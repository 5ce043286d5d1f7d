"""The one retry rule: how long to pause before asking a silent store again, or looking again where
nobody calls.

Contract: grows geometrically with the number of failures, jittered so that many clients do not
come back together, and never so long that a short lease or deadline is slept through.
"""

from __future__ import annotations

__all__ = ["pause"]

FIRST = 0.02
FACTOR = 2.0
LONGEST = 1.0
SHORTEST = 0.005


def pause(
    failures: int,
    random: float,
    remaining: float,
    *,
    first: float = FIRST,
    longest: float = LONGEST,
) -> float:
    """Seconds to wait after the `failures`-th failure in a row (1 for the first) when `remaining`
    seconds are left; `random` in [0, 1) spreads it over half to the whole of the step."""
    step = min(longest, first * FACTOR ** min(failures - 1, 16))
    return min(step * (0.5 + random / 2), max(SHORTEST, remaining / 4))
