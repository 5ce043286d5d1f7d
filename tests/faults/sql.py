"""What the tests of both databases share: a driver on a real server, on either port."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.backends import find
from holdfast.backends.sql import url as sql_url
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.pool import Pool
from holdfast.backends.sql.session import Session
from holdfast.backends.url import parse
from holdfast.core.port import Port
from holdfast.ports.asyncio import AsyncioPort
from holdfast.ports.clock import now
from holdfast.ports.thread import ThreadPort, drive

T = TypeVar("T")

PORTS = ("sync", "aio")


def driver(url: str, monkeypatch: Any) -> Driver:
    """How a URL's server is reached, without a strategy."""
    found: list[Driver] = []
    monkeypatch.setitem(sql_url.STRATEGIES, "row", lambda driver, values: found.append(driver))
    parsed = parse(url)
    find(parsed.scheme).from_url(parsed)
    return found[0]


class Ground:
    """One port, and sessions on it. `run` runs a coroutine as that port's clients would."""

    def __init__(self, port: str, driver: Driver) -> None:
        self.asynchronous = port == "aio"
        self.connect = driver.connector(self.asynchronous)
        self.driver = driver
        self.kind = "postgresql" if driver.dialect.returning else "mysql"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work) if self.asynchronous else drive(work)

    async def session(self, seconds: float = 5.0) -> Session:
        return await self.connect(now() + seconds)

    def pool(self, limit: int = 3) -> Pool:
        port: Port = AsyncioPort() if self.asynchronous else ThreadPort()
        return Pool(port, self.connect, limit, self.driver.where)


async def settle(ground: Ground) -> None:
    """asyncio closes sockets in its next rounds."""
    if ground.asynchronous:
        for _ in range(3):
            await asyncio.sleep(0)
