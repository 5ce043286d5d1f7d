"""Inside what people have: an SQLAlchemy engine or a function in place of a URL."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import aiomysql
import psycopg
import pymysql
import pytest
import sqlalchemy
from pymysql.constants import CLIENT
from sqlalchemy.ext.asyncio import create_async_engine

import holdfast
from holdfast import Misconfigured, aio
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.sql import SqlServer

pytestmark = pytest.mark.servers

STRATEGIES = ["row", "optimistic", "advisory", "for-update"]
DRIVERS = {"mysql": ("mysql+pymysql", "mysql+aiomysql"), "postgresql": ("postgresql+psycopg",) * 2}


@pytest.fixture(params=["mysql", "postgresql"])
def server(
    request: pytest.FixtureRequest, mariadb_server: MariaDBServer, postgres_server: PostgresServer
) -> SqlServer:
    return mariadb_server if request.param == "mysql" else postgres_server


def place(server: SqlServer, asynchronous: bool) -> str:
    scheme, _, rest = server.url.partition(":")
    return f"{DRIVERS[scheme][asynchronous]}:{rest}"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_engine(server: SqlServer, strategy: str) -> None:
    """The locks are the same ones as by a URL, and the engine's own pool is left alone."""
    engine = sqlalchemy.create_engine(place(server, False), pool_size=2, max_overflow=0)
    mine = holdfast.connect(engine, strategy=strategy)
    others = holdfast.connect(f"{server.url}?strategy={strategy}")
    with mine, others:
        with mine.lock("x") as lease, mine.lock("y"), mine.lock("z"):
            assert others.lock("x").acquire(blocking=False) is None
            assert lease.renew() > 0
            with engine.connect() as one, engine.connect() as two:
                assert one.scalar(sqlalchemy.text("SELECT 1")) == 1
                assert two.scalar(sqlalchemy.text("SELECT 1")) == 1
        with others.lock("x"):
            assert mine.lock("x").acquire(timeout=1.5) is None
    engine.dispose()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_asyncio_engine(server: SqlServer, strategy: str) -> None:
    async def work() -> None:
        engine = create_async_engine(place(server, True), pool_size=2, max_overflow=0)
        async with (
            aio.connect(engine, strategy=strategy) as mine,
            aio.connect(f"{server.url}?strategy={strategy}") as others,
        ):
            async with mine.lock("x") as lease, mine.lock("y"), mine.lock("z"):
                assert await others.lock("x").acquire(blocking=False) is None
                assert await lease.renew() > 0
                async with engine.connect() as one:
                    assert await one.scalar(sqlalchemy.text("SELECT 1")) == 1
            async with others.lock("x"):
                assert await mine.lock("x").acquire(timeout=1.5) is None
        await engine.dispose()

    asyncio.run(work())


def functions(server: SqlServer) -> tuple[Any, Any]:
    if server.url.startswith("mysql"):
        where = {
            "host": "127.0.0.1", "port": server.port, "user": "root",
            "client_flag": CLIENT.FOUND_ROWS,
        }  # fmt: skip
        return (
            functools.partial(pymysql.connect, database="holdfast", **where),
            functools.partial(aiomysql.connect, db="holdfast", **where),
        )
    return (
        functools.partial(psycopg.connect, server.url),
        functools.partial(psycopg.AsyncConnection.connect, server.url),
    )


@pytest.mark.parametrize("strategy", ["row", "advisory"])
def test_a_function(server: SqlServer, strategy: str) -> None:
    blocking, suspending = functions(server)
    scheme, _, rest = server.url.partition(":")
    named = f"{scheme}:///{rest.rpartition('/')[2]}"
    with (
        holdfast.connect(named, connection=blocking, strategy=strategy) as mine,
        holdfast.connect(f"{server.url}?strategy={strategy}") as others,
        mine.lock("x"),
    ):
        assert others.lock("x").acquire(blocking=False) is None

    async def work() -> None:
        async with (
            aio.connect(named, connection=suspending, strategy=strategy) as mine,
            mine.lock("x") as lease,
        ):
            assert lease.held

    asyncio.run(work())


def test_a_psycopg_function_needs_no_url(postgres_server: PostgresServer) -> None:
    connect = functools.partial(psycopg.connect, postgres_server.url)
    with holdfast.connect(connect) as locks, locks.lock("x") as lease:
        assert lease.held


def test_what_cannot_work_is_refused(mariadb_server: MariaDBServer) -> None:
    for wrong in (17, object(), lambda: None, sqlalchemy.create_engine("sqlite://")):
        with pytest.raises(Misconfigured):
            holdfast.connect(wrong)
    with pytest.raises(Misconfigured, match="by itself"):
        holdfast.connect("memory://", connection=lambda: None)
    engine = create_async_engine(place(mariadb_server, True))
    with holdfast.connect(engine) as locks, pytest.raises(Misconfigured, match="asyncio"):
        locks.lock("x").acquire()
    counting = functools.partial(
        pymysql.connect, host="127.0.0.1", port=mariadb_server.port, user="root"
    )
    with (
        holdfast.connect("mysql:///holdfast", connection=counting) as locks,
        pytest.raises(Misconfigured, match="FOUND_ROWS"),
    ):
        locks.lock("x").acquire()
