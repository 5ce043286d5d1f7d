"""`?dialect=plain`: SET NX PX, as redis-py's Lock, redsync and most hand-written locks have it.

Contract: excludes whoever takes the key NAME with SET NX, and is excluded by them. Others do not
say when they release: for them one waiter of each client looks now and then. Among holdfast clients
a release is announced on `PREFIX:free:NAME`. Partners: `scripts/plain.lua`, `literal.py`.
"""

from __future__ import annotations

from holdfast.backends.redis.literal import Dialect, scripts_of

__all__ = ["PLAIN"]


def _channel(prefix: str, name: str) -> str:
    return f"{prefix}:free:{name}"


PLAIN = Dialect("plain", scripts_of("plain"), _channel, others_announce=False)
