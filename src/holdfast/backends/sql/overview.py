"""What an operator sees and may do: who holds, who waits, and ending it.

Contract: `inspect` and `evict` of `core/backend.py`. Looking takes no lock and changes nothing.
"""

from __future__ import annotations

from holdfast.backends.common import info_of, public_id
from holdfast.backends.sql.desk import Desk
from holdfast.backends.sql.rules import Line, mode_of
from holdfast.backends.sql.schema import Tables
from holdfast.backends.sql.step import Steps
from holdfast.backends.sql.words import GRAVE, HOLDER
from holdfast.core.port import Port
from holdfast.errors import Unavailable
from holdfast.types import ClaimInfo, LockInfo, Mode, Unknown

__all__ = ["Overview"]


class Overview:
    _port: Port
    _desk: Desk
    _steps: Steps
    _tables: Tables

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        low = prefix.encode()
        within = "name = %s" if exact else "name >= %s AND name < %s"
        values = (low,) if exact else (low, low + b"\xff")  # which no text contains
        now = self._desk.dialect.now
        alone = await self._desk.read(
            f"SELECT name, version, owner, since, expires, info, {now} FROM {self._tables.locks}"
            f" WHERE {within} AND (expires > {now} OR line = 1)",
            values,
            deadline,
        )
        claims = await self._desk.read(
            "SELECT name, kind, owner, mode, permits, since, expires, fence, info, "
            f"{now} FROM {self._tables.claims}"
            f" WHERE {within} AND kind <> {GRAVE} AND expires > {now} ORDER BY place",
            values,
            deadline,
        )
        fences: dict[bytes, int | None] = {}
        holders: dict[bytes, list[ClaimInfo]] = {}
        waiters: dict[bytes, list[ClaimInfo]] = {}
        for name, version, owner, since, expires, info, moment in alone:
            fences[name] = version or None
            if owner and expires > moment:
                holders.setdefault(name, []).append(
                    _info(owner, Mode.EXCLUSIVE, 1, since, expires, version, info, moment)
                )
        for name, kind, owner, number, permits, since, expires, fence, info, moment in claims:
            group = holders if kind == HOLDER else waiters
            group.setdefault(name, []).append(
                _info(owner, mode_of(number), permits, since, expires, fence, info, moment)
            )
        return [
            LockInfo(
                name.decode(errors="replace"),
                tuple(holders.get(name, ())),
                tuple(waiters.get(name, ())),
                fences.get(name),
            )
            for name in sorted({*holders, *waiters})
        ]

    async def evict(self, name: str, deadline: float) -> int:
        count = 0

        def end_all(line: Line) -> None:
            nonlocal count
            count = len(line.holders)
            for owner in list(line.holders):
                line.remove(owner)

        answer = await self._steps.step(
            name.encode(), b"", end_all, lambda _: count, deadline, make=False
        )
        if isinstance(answer, Unknown):
            raise Unavailable(f"whether {name!r} was evicted is not known: {answer.reason}")
        return answer or 0


def _info(
    owner: bytes,
    mode: Mode,
    permits: int,
    since: int,
    expires: int,
    fence: int | None,
    info: bytes,
    now: int,
) -> ClaimInfo:
    return ClaimInfo(
        id=public_id(owner.decode(errors="replace")),
        mode=mode,
        since=max(0, now - since) / 1e6,
        remaining=(expires - now) / 1e6,
        permits=permits,
        fence=fence,
        info=info_of(info),
    )
