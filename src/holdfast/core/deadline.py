"""From a timeout to a deadline and back: the one place that knows what "for ever" is.

Contract: a timeout is seconds from now, and -1 waits for ever; a deadline is a moment on the port's
clock, and infinite if there is none. What waits keeps the deadline (law 1): a timeout that were
counted anew with each step would last for several.
"""

from __future__ import annotations

import math

from holdfast.core.port import Port

__all__ = ["deadline_of", "left_of"]


def deadline_of(port: Port, timeout: float | None) -> float:
    """When the time is over that begins now. None: for ever, as for `threading.Event.wait`."""
    return math.inf if timeout is None or timeout < 0 else port.now() + timeout


def left_of(port: Port, deadline: float) -> float:
    """As an acquire's timeout: what is left of it; 0 when it is over."""
    return -1.0 if math.isinf(deadline) else max(0.0, deadline - port.now())
