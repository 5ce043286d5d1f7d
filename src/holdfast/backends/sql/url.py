"""The options that both databases have, and the strategies they choose from.

Contract: no I/O. Partners: `mysql/url.py`, `postgres/url.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.backends.sql.connected import advisory, for_update
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.optimistic import OptimisticBackend
from holdfast.backends.sql.row import RowBackend
from holdfast.backends.url import Option
from holdfast.core.backend import Backend
from holdfast.errors import Misconfigured

__all__ = ["BOUND", "OPTIONS", "STRATEGIES", "build"]

STRATEGIES: dict[str, Callable[[Driver, dict[str, Any]], Backend]] = {
    "row": RowBackend,
    "for-update": for_update,
    "optimistic": OptimisticBackend,
    "advisory": advisory,
}
"""What `?strategy=` may say."""

BOUND = ("advisory", "for-update")
"""Those of which a lock lives as long as its connection."""

OPTIONS = (
    Option("strategy", "row", "how locks are kept", tuple(STRATEGIES)),
    Option("table", "holdfast", "what the names of all tables begin with"),
    Option("max_connections", 32, "so many connections at once, and no more"),
    Option(
        "pooler",
        "",
        "`session`: what stands between us and the database gives each client a connection of its "
        "own, or one node of a cluster",
        ("", "session"),
    ),
    Option("window", 2.0, "row: seconds a waiter that was given the lock has to answer"),
    Option("heartbeat", 1.0, "row: seconds after which who waits says that it is alive"),
    Option("poll", 0.25, "the longest pause between two looks where nobody can call"),
)


def build(driver: Driver, values: dict[str, Any]) -> Backend:
    if values["max_connections"] < 1:
        raise Misconfigured(f"max_connections={values['max_connections']}: 1 or more")
    return STRATEGIES[values["strategy"]](driver, values)
