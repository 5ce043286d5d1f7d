"""The gates of `holdfast.fencing` with `await`: tables, Redis keys, files, and one for tasks.

Contract: as theirs, for asyncio's drivers: psycopg's AsyncConnection, aiomysql, aiosqlite,
SQLAlchemy's AsyncConnection and AsyncSession, redis.asyncio. (asyncpg's own connections are not
DB-API's: use SQLAlchemy's.) What is compared and what follows is decided there, once.

Hazard: a cancelled statement may have been executed; so it is with any driver. A write may be done
again with the same token.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from holdfast.errors import Misconfigured
from holdfast.fencing import file as blocking
from holdfast.fencing.gate import Mark
from holdfast.fencing.redis import Key
from holdfast.fencing.sql import Statement
from holdfast.fencing.table import Answer, Rows
from holdfast.fencing.tokens import Token, token_of
from holdfast.fencing.trigger import refusals, trigger

__all__ = ["File", "Gate", "RedisKey", "Table", "refusals", "trigger"]


class Gate:
    """A gate in this process, for the tasks of one event loop."""

    def __init__(self, name: str = "the resource", *, highest: int = 0) -> None:
        self._mark = Mark(name, highest)
        self._turn = asyncio.Lock()

    @property
    def highest(self) -> int:
        """The highest token that has passed; 0 before the first."""
        return self._mark.highest

    def check(self, lease: Token) -> int:
        """Compare, note and return the token; `StaleFence` if a newer one has passed before. For
        writes without an `await` between this and them. `Misconfigured` if a task with an older
        token is inside `passing`, which nobody may overtake and this cannot wait for."""
        token = token_of(lease)
        if self._turn.locked() and token > self._mark.highest:
            raise Misconfigured(
                f"somebody passes {self._mark.name} at the moment, and would write after you: "
                "await your turn by `async with gate.passing(lease)`"
            )
        return self._mark.check(token)

    @contextlib.asynccontextmanager
    async def passing(self, lease: Token) -> AsyncGenerator[int]:
        """`async with gate.passing(lease):` nobody else passes until the body ends."""
        async with self._turn:
            yield self._mark.check(lease)

    def __repr__(self) -> str:
        return f"<Gate {self._mark.name!r} highest={self.highest}>"


class Table(Rows):
    """As `holdfast.fencing.Table`."""

    async def update(
        self,
        connection: Any,
        lease: Token,
        key: Mapping[str, Any],
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """As `holdfast.fencing.Table.update`."""
        if hasattr(connection, "get_bind") and hasattr(connection, "connection"):
            connection = await connection.connection()  # an AsyncSession's
        driver = self._driver(connection)
        steps = self._steps(lease, key, values or {}, driver)
        try:
            statement = next(steps)
            while True:
                statement = steps.send(await _run(connection, statement, driver.style))
        except StopIteration:
            pass


async def _run(connection: Any, statement: Statement, style: str) -> Answer:
    text, values = statement.for_driver(style)
    if hasattr(connection, "exec_driver_sql"):
        result = await connection.exec_driver_sql(text, values)
        return (0, result.first()) if statement.rows else (result.rowcount, None)
    async with connection.cursor() as cursor:
        await cursor.execute(text, values)
        return (0, await cursor.fetchone()) if statement.rows else (cursor.rowcount, None)


class RedisKey:
    """As `holdfast.fencing.RedisKey`, for a client of redis.asyncio."""

    def __init__(
        self,
        client: Any,
        key: str | bytes,
        *,
        fence_key: str | bytes | None = None,
        forget_after: float | None = None,
    ) -> None:
        self._client = client
        self._key = Key(key, fence_key, forget_after)

    async def set(
        self, lease: Token, value: str | bytes | int | float, ttl: float | None = None
    ) -> None:
        """As `holdfast.fencing.RedisKey.set`."""
        await self.call(lease, *self._key.set(value, ttl))

    async def delete(self, lease: Token) -> bool:
        """As `holdfast.fencing.RedisKey.delete`."""
        return bool(await self.call(lease, "DEL"))

    async def call(self, lease: Token, command: str, *arguments: str | bytes | int | float) -> Any:
        """As `holdfast.fencing.RedisKey.call`."""
        token = token_of(lease)
        request = self._key.request(token, (command, *arguments))
        return self._key.judge(token, await self._client.eval(*request))

    async def check(self, lease: Token) -> None:
        """As `holdfast.fencing.RedisKey.check`."""
        token = token_of(lease)
        self._key.judge(token, await self._client.eval(*self._key.request(token, ())))

    async def highest(self) -> int:
        """As `holdfast.fencing.RedisKey.highest`."""
        return int(await self._client.get(self._key.fence_key) or 0)


class File:
    """As `holdfast.fencing.File`, in a thread: no flock and no disk blocks the loop."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = blocking.File(path)

    async def write(self, lease: Token, data: bytes | str) -> None:
        """As `holdfast.fencing.File.write`."""
        await asyncio.to_thread(self._file.write, lease, data)

    async def replace(self, lease: Token, source: str | os.PathLike[str]) -> None:
        """As `holdfast.fencing.File.replace`."""
        await asyncio.to_thread(self._file.replace, lease, source)

    async def check(self, lease: Token) -> None:
        """As `holdfast.fencing.File.check`."""
        await asyncio.to_thread(self._file.check, lease)

    async def highest(self) -> int:
        """As `holdfast.fencing.File.highest`."""
        return await asyncio.to_thread(self._file.highest)
