"""Who holds and who waits, for operators: found by SCAN, read by one script for each name.

Contract: changes nothing, never uses KEYS, and stops at its deadline. What has expired and was not
yet cleared away is left out. Partner: `scripts/overview.lua`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from holdfast.backends.common import info_of, public_id
from holdfast.backends.redis.courier import Courier
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.requests import MODE_OF, Requests
from holdfast.backends.redis.transport import ORDINARY
from holdfast.backends.redis.wire import pack
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["entry_info", "exclusive", "inspect", "line", "pairs", "scores"]

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
        for name, (reply, _) in zip(
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


def pairs(flat: Any) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def line(name: str, reply: Any) -> LockInfo:
    now, lock, sharing, queue, entries, clients = reply
    entry_of, alive = pairs(entries), pairs(clients)
    token, expires, owner, info = exclusive(lock or b"")  # []: of another kind
    holders: list[ClaimInfo] = []
    if expires > now:
        holders.append(
            ClaimInfo(
                id=public_id(owner),
                mode=Mode.EXCLUSIVE,
                since=max(0.0, (now - token) / 1e6),  # a token is the time of its grant
                remaining=(expires - now) / 1e6,
                fence=token,
                info=info_of(info),
            )
        )
    for sharer, expiry in scores(sharing):
        if expiry > now and sharer in entry_of:
            holders.append(_entry(sharer, entry_of[sharer], now, expiry))
    waiters: list[ClaimInfo] = []
    for waiter in queue:
        if waiter in entry_of:
            channel = entry_of[waiter][50:].partition(b" ")[0]
            until = int(alive.get(channel, b"2:0").partition(b":")[2])
            if until > now:
                waiters.append(_entry(waiter, entry_of[waiter], now, until))
    return LockInfo(name, tuple(holders), tuple(waiters), token or None)


def exclusive(lock: bytes) -> tuple[int, int, str, bytes]:
    """The last token, and the exclusive holder's expiry (0: there is none), owner and info. What a
    lock's string says is written down in scripts/lines.lua; what is no lock says nothing."""
    kind = lock[:1]
    if kind == b"f" and len(lock) == 9:
        return int(*struct.unpack_from("<d", lock, 1)), 0, "", b""
    rest = lock[{b"x": 17, b"c": 51}.get(kind, len(lock)) :]
    owner, space, info = rest.partition(b" ")
    token, expires = struct.unpack_from("<dd", lock, 1 if kind == b"x" else 3) if space else (0, 0)
    if not math.isfinite(token + expires):
        return 0, 0, "", b""
    if kind == b"c" and lock[1:2] != b"x":
        expires = 0
    return int(token), int(expires), owner.decode(errors="replace"), info


def scores(flat: Any) -> list[tuple[bytes, int]]:
    return [(owner, int(float(score))) for owner, score in zip(flat[::2], flat[1::2], strict=True)]


def entry_info(packed: bytes) -> bytes:
    """What an entry of `scripts/lines.lua` says about its claim."""
    return packed[50:].partition(b" ")[2]


def _entry(owner: bytes, packed: bytes, now: int, expiry: int) -> ClaimInfo:
    permits, _, _, _, since, fence = struct.unpack_from("<6d", packed, 2)
    return ClaimInfo(
        id=public_id(owner.decode()),
        mode=MODE_OF[packed[1:2].decode()],
        since=(now - since) / 1e6,
        remaining=(expiry - now) / 1e6,
        permits=int(permits),
        fence=int(fence) or None,
        info=info_of(entry_info(packed)),
    )
