"""Looking into lines and taking locks away: for operators, so correct rather than fast.

Contract: `inspect` and `evict` of `core/backend.py`. A line counts as it does for who stands in it,
strangers' keys too; among all names only what looks like a lock is shown. Who is taken away is who
held when we looked, and nobody who has the same key later. Partners: `keys.py`, what keys say;
`reading.py`, which asks again.
"""

from __future__ import annotations

from holdfast.backends.common import holders
from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import Deleted, KeyValue, LeaseAnswer, Ranged, TxnAnswer
from holdfast.backends.etcd.channel import Channel, refusal
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.keys import Keys, Lineman, described, is_claim, lineman
from holdfast.backends.etcd.reading import read
from holdfast.backends.etcd.wire import ASCENDING, CREATE, EQUAL, after
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["evict", "inspect"]

PAGE = 500
LEASES = 32
"""For so many leases etcd is asked how long they last; of the others it is not known."""
OPERATIONS = 60
"""Deletions in one transaction: etcd takes 128 operations by default."""

Line = list[tuple[KeyValue, Lineman]]


async def inspect(
    channel: Channel, port: Port, keys: Keys, prefix: str, exact: bool, deadline: float
) -> list[LockInfo]:
    lines: dict[str, Line] = {}
    if exact:
        line = await _line(channel, port, keys.line(prefix), deadline)
        if line:
            lines[prefix] = line
    else:
        start, end = keys.below(prefix)
        while start:
            request = wire.get(start, end, limit=PAGE)
            (data,) = await read(channel, port, deadline, (wire.RANGE, request))
            page = Ranged.read(data).kvs
            for kv in page:
                parts = keys.split(kv.key)
                if parts is not None and is_claim(kv, parts[1]):
                    lines.setdefault(parts[0], []).append((kv, lineman(parts[1])))
            start = page[-1].key + b"\0" if len(page) == PAGE else b""
    remaining = await _remaining(channel, lines, deadline)
    found: list[LockInfo] = []
    for name in sorted(lines):
        line = sorted(lines[name], key=lambda one: one[0].created)
        hold: list[ClaimInfo] = []
        wait: list[ClaimInfo] = []
        for (kv, one), held in zip(line, holders(one for _, one in line), strict=True):
            (hold if held else wait).append(_info(kv, one, remaining))
        writers = [holder.fence for holder in hold if holder.mode is Mode.EXCLUSIVE]
        found.append(LockInfo(name, tuple(hold), tuple(wait), writers[0] if writers else None))
    return found


async def evict(channel: Channel, port: Port, keys: Keys, name: str, deadline: float) -> int:
    line = await _line(channel, port, keys.line(name), deadline)
    held = [kv for (kv, _), held in zip(line, holders(one for _, one in line), strict=True) if held]
    ended = 0
    for start in range(0, len(held), OPERATIONS):
        part = held[start : start + OPERATIONS]
        # Deletes who holds now, and nobody who has the same key later (etcd's mutex uses its keys
        # again): each under its own condition.
        one_by_one = [
            wire.op_txn(
                wire.txn(
                    [wire.compare(kv.key, CREATE, EQUAL, kv.created)], [wire.op_delete(kv.key)], []
                )
            )
            for kv in part
        ]
        (result,) = await channel.ask(deadline, (wire.TXN, wire.txn([], one_by_one, [])))
        if isinstance(result, Failure):
            error = refusal(result)
            if isinstance(error, Misconfigured):
                raise error
            raise Unavailable(
                f"evicting {name!r} got no answer ({result.text}): look whether it is still held"
            )
        for inner in TxnAnswer.read(result).answers:
            if isinstance(inner, TxnAnswer):
                ended += sum(one.count for one in inner.answers if isinstance(one, Deleted))
    return ended


async def _line(channel: Channel, port: Port, line: bytes, deadline: float) -> Line:
    """All claims on one name, in order. Whatever is under its prefix counts, as it does for who
    wants the lock."""
    request = wire.get(line, after(line), order=ASCENDING)
    (data,) = await read(channel, port, deadline, (wire.RANGE, request))
    return [(kv, lineman(kv.key[len(line) :])) for kv in Ranged.read(data).kvs]


async def _remaining(channel: Channel, lines: dict[str, Line], deadline: float) -> dict[int, float]:
    """How long leases last if nobody keeps them alive."""
    leases = list({kv.lease for line in lines.values() for kv, _ in line if kv.lease})[:LEASES]
    if not leases:
        return {}
    results = await channel.ask(
        deadline, *((wire.TIME_TO_LIVE, wire.time_to_live(one, False)) for one in leases)
    )
    return {
        lease: max(0.0, LeaseAnswer.read(result).ttl)
        for lease, result in zip(leases, results, strict=True)
        if not isinstance(result, Failure)
    }


def _info(kv: KeyValue, one: Lineman, remaining: dict[int, float]) -> ClaimInfo:
    about = described(kv.value)
    left = None if about.fixed else remaining.get(kv.lease)
    return ClaimInfo(
        id=one.id[:8] or f"{kv.lease:x}"[-8:],
        mode=one.mode,
        since=about.since,
        remaining=left,
        permits=one.permits,
        fence=kv.created,
        info=about.info,
    )
