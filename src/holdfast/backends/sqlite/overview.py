"""What an operator sees, and what nobody asks for any more: the store's view of all lines.

Partners: `store.py`, which has the rules; `cells.py`.
"""

from __future__ import annotations

import hashlib
import json

from holdfast.backends.sqlite import schema
from holdfast.backends.sqlite.cells import Cells
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["Overview"]


class Overview(Cells):
    def _advance(self, name: bytes, now: float) -> object:
        raise NotImplementedError

    def inspect(self, prefix: str, exact: bool) -> list[LockInfo]:
        low = prefix.encode()
        high = low + (b"\0" if exact else b"\xff")
        now = schema.now()
        self.begin()
        self._sweep(now, low, high)
        found: dict[bytes, tuple[list[ClaimInfo], list[ClaimInfo]]] = {}
        for table, which in (("holders", 0), ("waiters", 1)):
            fence, order = ("fence", "since") if which == 0 else ("NULL", "place")
            rows = self.db.execute(
                f"SELECT name, owner, process, mode, permits, since, expires, info, {fence}"
                f" FROM {table} WHERE name >= ? AND name < ? ORDER BY name, {order}", (low, high),
            ).fetchall()  # fmt: skip
            for name, owner, process, mode, permits, since, expires, info, token in rows:
                if which and not (expires > now and self.site.alive(process)):
                    continue
                shown = ClaimInfo(
                    id=hashlib.sha256(owner.encode()).hexdigest()[:8],  # law 9: not the owner
                    mode=Mode(mode),
                    since=now - since,
                    remaining=expires - now,
                    permits=permits,
                    fence=token,
                    info=json.loads(info),
                )
                found.setdefault(name, ([], []))[which].append(shown)
        self.end()
        return [
            LockInfo(name.decode(), tuple(holders), tuple(waiters), _last(holders))
            for name, (holders, waiters) in sorted(found.items())
        ]

    def sweep(self) -> None:
        """Forget what is over and nobody asked about again."""
        now = schema.now()
        self.begin()
        self._sweep(now, b"", b"\xff")
        self.tombstones.forget(now)
        self.sweep_cells(now)
        self.end()

    def _sweep(self, now: float, low: bytes, high: bytes) -> None:
        """Move on the lines in which somebody expired or died."""
        names: set[bytes] = set()
        for table in ("holders", "waiters"):
            within = f"FROM {table} WHERE name >= ? AND name < ?"
            found = self.db.execute(f"SELECT DISTINCT process {within}", (low, high)).fetchall()
            dead = [process for (process,) in found if not self.site.alive(process)]
            marks = ",".join("?" * len(dead))
            names.update(
                name
                for (name,) in self.db.execute(
                    f"SELECT DISTINCT name {within} AND (expires <= ? OR process IN ({marks}))",
                    (low, high, now, *dead),
                ).fetchall()
            )
        for name in names:
            self._advance(name, now)


def _last(holders: list[ClaimInfo]) -> int | None:
    return max((h.fence for h in holders if h.fence is not None), default=None)
