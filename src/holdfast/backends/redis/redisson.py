"""`?dialect=redisson`: the hash, the channel and the counts of Redisson's RLock.

Contract: excludes `getLock(NAME)` of Redisson clients, and is excluded by it; each hears of the
other's releases. Their watchdog is our renewal. Partners: `scripts/redisson.lua`, `literal.py`.
"""

from __future__ import annotations

from holdfast.backends.redis.literal import Dialect, scripts_of

__all__ = ["REDISSON"]


def _channel(prefix: str, name: str) -> str:
    """Redisson puts a name in braces unless it has some of its own."""
    tagged = name if "{" in name else f"{{{name}}}"
    return f"redisson_lock__channel:{tagged}"


REDISSON = Dialect("redisson", scripts_of("redisson"), _channel, others_announce=True)
