"""What an operator sees of all lines. Partner: `store.py`, which has moved them on before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable

from holdfast.backends.common import public_id
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["overview"]


def overview(
    db: sqlite3.Connection, alive: Callable[[int], bool], now: float, low: bytes, high: bytes
) -> list[LockInfo]:
    """Of the names from `low` to below `high`, sorted."""
    found: dict[bytes, tuple[list[ClaimInfo], list[ClaimInfo]]] = {}
    for table, which in (("holders", 0), ("waiters", 1)):
        fence, order = ("fence", "since") if which == 0 else ("NULL", "place")
        rows = db.execute(
            f"SELECT name, owner, process, mode, permits, since, expires, info, {fence}"
            f" FROM {table} WHERE name >= ? AND name < ? ORDER BY name, {order}", (low, high),
        ).fetchall()  # fmt: skip
        for name, owner, process, mode, permits, since, expires, info, token in rows:
            if which and not (expires > now and alive(process)):
                continue  # it is dropped when it reaches the front
            claim = ClaimInfo(
                id=public_id(owner),
                mode=Mode(mode),
                since=now - since,
                remaining=expires - now,
                permits=permits,
                fence=token,
                info=json.loads(info),
            )
            found.setdefault(name, ([], []))[which].append(claim)
    return [
        LockInfo(name.decode(), tuple(holders), tuple(waiters), _last(holders))
        for name, (holders, waiters) in sorted(found.items())
    ]


def _last(holders: list[ClaimInfo]) -> int | None:
    return max((h.fence for h in holders if h.fence is not None), default=None)
