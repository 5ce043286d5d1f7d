"""The values beside the locks: one hash for each, changed by one script.

Contract: the cell part of `core/backend.py`. A change is told on the cell's own channel.
"""

from __future__ import annotations

from functools import partial

from holdfast.backends.common import NEWER_FENCE, OTHER_VERSION
from holdfast.backends.redis.courier import Courier
from holdfast.backends.redis.keys import slot_of
from holdfast.backends.redis.lua import CELL_READ, CELL_WRITE
from holdfast.backends.redis.requests import Requests, microseconds
from holdfast.backends.redis.waiting import Room
from holdfast.backends.redis.wire import NoAnswer, pack_word
from holdfast.core.port import Port
from holdfast.types import Cell, CellConflict, Unknown

__all__ = ["Cells"]

MEMORY = 86400.0
"""How long an empty cell's version and fence are remembered."""

REASONS = {b"fence": NEWER_FENCE, b"version": OTHER_VERSION}


class Cells:
    _port: Port
    _courier: Courier
    _requests: Requests
    _room: Room

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        return (await self._cell(name, deadline))[0]

    async def _cell(self, name: str, deadline: float) -> tuple[Cell | None, float]:
        """What is there, and when it expires by itself."""
        key = self._requests.keys.cell(name)
        courier, rest, slot = self._courier, pack_word(key), slot_of(key)
        reply, _ = await courier.read(
            lambda: courier.call(CELL_READ, rest, slot, deadline), deadline
        )
        value, version, left = reply
        expires = self._port.now() + left / 1e6 if left >= 0 else float("inf")
        return (None if value is None else Cell(value, version)), expires

    async def cell_write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
        deadline: float,
    ) -> Cell | CellConflict | Unknown:
        keys = self._requests.keys
        key = keys.cell(name)
        words: tuple[bytes | str, ...] = (
            key,
            value or b"",
            "1" if value is None else "0",
            "-1" if expect is None else str(expect),
            "" if fence is None else str(fence),
            "0" if ttl is None else microseconds(max(ttl, 1e-6)),  # 0 is for ever
            keys.cell_channel(name),
            microseconds(MEMORY),
        )
        rest = b"".join(map(pack_word, words))
        try:
            reply, _ = await self._courier.call(CELL_WRITE, rest, slot_of(key), deadline)
        except NoAnswer as error:
            return Unknown(str(error))
        if reply[0] == 1:
            return Cell(value or b"", reply[1])
        _, reason, current, version = reply
        found = None if current is None else Cell(current, version)
        return CellConflict(found, REASONS[reason])

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        channel = self._requests.keys.cell_channel(name)
        return await self._room.changed(channel, version, partial(self._cell, name), deadline)
