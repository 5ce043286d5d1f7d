"""What type checkers must say about gates. Only read, by `tests/test_typing.py`."""

from __future__ import annotations

import sqlite3
from typing import assert_type

import holdfast
from holdfast import StaleFence, aio, fencing
from holdfast.fencing import aio as afencing

locks = holdfast.connect("memory://")
connection = sqlite3.connect(":memory:")

gate = fencing.Gate("account 7", highest=3)
with locks.lock("a") as lease, gate.passing(lease) as token:
    assert_type(token, int)
    assert_type(gate.check(lease), int)
    assert_type(gate.check(7), int)
    assert_type(gate.highest, int)
    fencing.Table("account", fence="token").update(connection, lease, {"id": 7}, {"balance": 150})
    fencing.File("report").write(lease, "text")
    assert_type(fencing.File("report").highest(), int)
    assert_type(lease.transact(put={"a": "1", "b": b"2"}, delete=["c"]), int)
    with fencing.refusals(lease, "account 7"):
        pass

assert_type(fencing.trigger("account", "sqlite"), tuple[str, ...])


def told(refused: StaleFence) -> None:
    assert_type(refused.resource, str)
    assert_type(refused.token, int)
    assert_type(refused.highest, int | None)


async def main() -> None:
    gate = afencing.Gate()
    async with aio.connect("memory://").lock("a") as lease, gate.passing(lease) as token:
        assert_type(token, int)
        assert_type(await lease.transact(put={"a": "1"}), int)
        await afencing.Table("account").update(connection, lease, {"id": 7})
        await afencing.File("report").write(lease, b"data")
        assert_type(await afencing.RedisKey(object(), "a").highest(), int)
        assert_type(await afencing.RedisKey(object(), b"a").delete(7), bool)
