"""Who holds and who waits, for operators: found by SCAN, read by one script for each name.

Contract: changes nothing, never uses KEYS, and stops at its deadline. What has expired and was not
yet cleared away is left out. Partner: `scripts/overview.lua`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from holdfast.backends.local import public_id, shown
from holdfast.backends.redis.courier import Courier
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.requests import MODE_OF, Requests
from holdfast.backends.redis.transport import ORDINARY
from holdfast.backends.redis.wire import pack
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["holder_of", "info_of", "inspect", "line", "pairs"]

BATCH = 500
"""So many names are looked for, and read, at a time."""


async def inspect(
    courier: Courier,
    requests: Requests,
    script: Script,
    line: Callable[[str, Any], LockInfo],
    prefix: str,
    exact: bool,
    deadline: float,
) -> list[LockInfo]:
    """`line` makes something of what the script says about a name."""
    names = [prefix] if exact else await _names(courier, requests.keys, prefix, deadline)
    found: list[LockInfo] = []
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        asked = [requests.overview(name) for name in batch]
        for name, reply in zip(
            batch, await courier.call_many(script, asked, deadline, ORDINARY), strict=True
        ):
            if isinstance(reply, Exception):
                raise reply
            info = line(name, reply)
            if info.holders or info.waiters:
                found.append(info)
    return found


async def _names(courier: Courier, keys: Keys, prefix: str, deadline: float) -> list[str]:
    pattern = keys.pattern(prefix)
    names: set[str] = set()
    for node in await courier.masters(deadline):
        cursor = b"0"
        while True:
            cursor, found = await courier.command(
                node, pack("SCAN", cursor, "MATCH", pattern, "COUNT", str(BATCH)), deadline
            )
            names.update(name for key in found if (name := keys.name(key)) is not None)
            if cursor == b"0":
                break
    return sorted(name for name in names if name.startswith(prefix))


def pairs(flat: Any) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}


def line(name: str, reply: Any) -> LockInfo:
    now, lock, sharing, queue, entries, clients = reply
    state, entry_of, alive = pairs(lock), pairs(entries), pairs(clients)
    fence = int(state.get("f", "0")) or None
    holders: list[ClaimInfo] = []
    if state.get("m") == "x" and int(state["e"]) > now:
        holders.append(
            ClaimInfo(
                id=public_id(state["o"]),
                mode=Mode.EXCLUSIVE,
                since=(now - int(state["a"])) / 1e6,
                remaining=(int(state["e"]) - now) / 1e6,
                fence=fence,
                info=info_of(state["i"]),
            )
        )
    for owner, expiry in _scores(sharing):
        if expiry > now and owner in entry_of:
            holders.append(_entry(owner, entry_of[owner], now, expiry))
    waiters: list[ClaimInfo] = []
    for raw in queue:
        owner = raw.decode()
        if owner in entry_of:
            channel = entry_of[owner].split(" ", 1)[0].split(":", 8)[8]
            until = int(alive.get(channel, "0:2").split(":")[0])
            if until > now:
                waiters.append(_entry(owner, entry_of[owner], now, until))
    return LockInfo(name, tuple(holders), tuple(waiters), fence)


def _scores(flat: Any) -> list[tuple[str, int]]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [(owner.decode(), int(float(score))) for owner, score in pairs]


def _entry(owner: str, packed: str, now: int, expiry: int) -> ClaimInfo:
    fields, _, info = packed.partition(" ")
    _, mode, permits, _, _, _, since, fence, _ = fields.split(":", 8)
    return ClaimInfo(
        id=public_id(owner),
        mode=MODE_OF[mode],
        since=(now - int(since)) / 1e6,
        remaining=(expiry - now) / 1e6,
        permits=int(permits),
        fence=int(fence) or None,
        info=info_of(info),
    )


def holder_of(info: bytes) -> str:
    """Who it is, for a message; empty when that is not known."""
    return shown(info_of(info.decode())) if info else ""


def info_of(text: str) -> Mapping[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return cast(Mapping[str, str], found) if isinstance(found, dict) else {}
