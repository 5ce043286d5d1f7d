"""What an operator sees of all lines. Partner: `store.py`, which has moved them on before."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from holdfast.backends.common import info_of, public_id
from holdfast.backends.sqlite import sound
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["overview", "unsound"]


def overview(
    db: sqlite3.Connection, alive: Callable[[int], bool], now: float, low: bytes, high: bytes
) -> list[LockInfo]:
    """Of the names from `low` to below `high`, sorted; without those of which a row is not sound,
    for what is left would be told as if it were all."""
    hidden = unsound(db, low, high)
    found: dict[bytes, tuple[list[ClaimInfo], list[ClaimInfo]]] = {}
    for table, which in (("holders", 0), ("waiters", 1)):
        fence, order = ("fence", "since") if which == 0 else ("NULL", "place")
        rows = db.execute(
            f"SELECT name, owner, process, mode, permits, since, expires, info, {fence}"
            f" FROM {table} WHERE name >= ? AND name < ? ORDER BY name, {order}", (low, high),
        ).fetchall()  # fmt: skip
        for name, owner, process, mode, permits, since, expires, info, token in rows:
            if name in hidden:
                continue
            if which and not (expires > now and alive(process)):
                continue  # it is dropped when it reaches the front
            claim = ClaimInfo(
                id=public_id(owner),
                mode=Mode(mode),
                since=now - since,
                remaining=expires - now,
                permits=permits,
                fence=token,
                info=info_of(info),
            )
            found.setdefault(name, ([], []))[which].append(claim)
    return [
        LockInfo(name.decode(errors="replace"), tuple(holders), tuple(waiters), _last(holders))
        for name, (holders, waiters) in sorted(found.items())
    ]


def unsound(db: sqlite3.Connection, low: bytes, high: bytes) -> dict[bytes, str]:
    """Names, and in which table."""
    return {
        name: table
        for table, fine in (("holders", sound.holder), ("waiters", sound.waiter))
        for (name,) in db.execute(
            f"SELECT name FROM {table} WHERE name >= ? AND name < ? AND NOT {fine}", (low, high)
        ).fetchall()
    }


def _last(holders: list[ClaimInfo]) -> int | None:
    return max((h.fence for h in holders if h.fence is not None), default=None)
