"""Gates of tables: rows, triggers, transactions, SQLAlchemy and the asyncio drivers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiomysql
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import StaleFence, fencing
from holdfast.fencing import aio as afencing
from tests.faults.late import PATIENCE, WRITERS, sql_connection
from tests.faults.tables import DATABASES, a_table, sql_place, value_in
from tests.servers import MariaDBServer

pytestmark = [pytest.mark.servers, pytest.mark.req("B1")]


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def where(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> str:
    return sql_place(request, database, tmp_path)


@pytest.fixture
def table(where: str, database: str) -> Iterator[tuple[str, Any]]:
    with a_table(where, database, guarded=False) as made:
        yield made


def test_a_row_by_tokens(table: tuple[str, Any]) -> None:
    name, connection = table
    rows = fencing.Table(name)
    rows.update(connection, 5, {"id": 7}, {"value": "five"})
    rows.update(connection, 5, {"id": 7}, {"value": "five"})  # MySQL says: no row changed
    with pytest.raises(StaleFence) as refused:
        rows.update(connection, 4, {"id": 7}, {"value": "four"})
    assert (refused.value.token, refused.value.highest) == (4, 5)
    assert name in refused.value.resource
    with pytest.raises(LookupError, match="insert it"):
        rows.update(connection, 9, {"id": 1}, {"value": "nobody"})
    rows.update(connection, 2**63 - 1, {"id": 7, "value": "five"})  # the token alone
    with pytest.raises(StaleFence):
        rows.update(connection, 2**63 - 2, {"id": 7}, {"value": "less"})
    assert value_in(connection, name) == "five"


def test_a_transaction_behind_the_row(where: str, table: tuple[str, Any]) -> None:
    """Its token is noted first; whoever comes with another one waits for the commit, and is then
    refused, however it looks at the database."""
    name, connection = table
    rows = fencing.Table(name)
    with contextlib.closing(sql_connection(where)) as other:
        began = threading.Event()
        refused: list[StaleFence] = []

        def late() -> None:
            cursor = other.cursor()
            cursor.execute("BEGIN")
            if not where.startswith("sqlite"):  # the snapshot, before anybody else has written
                cursor.execute(f"SELECT fence FROM {name}")
                cursor.fetchall()
            began.set()
            try:
                rows.update(other, 5, {"id": 7}, {"value": "late"})
            except StaleFence as error:
                refused.append(error)
            cursor.execute("ROLLBACK")

        rows.update(connection, 5, {"id": 7}, {"value": "five"})
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE" if where.startswith("sqlite") else "BEGIN")
        rows.update(connection, 6, {"id": 7})
        thread = threading.Thread(target=late)
        thread.start()
        assert began.wait(PATIENCE)
        cursor.execute(f"UPDATE {name} SET value = 'six' WHERE id IN (7, 8)")
        cursor.execute("COMMIT")
        thread.join(PATIENCE)
        assert [error.highest for error in refused] == [6]
    assert value_in(connection, name) == "six"


def test_the_look_after_an_update_reads_what_is_there_now(
    request: pytest.FixtureRequest, mariadb_server: MariaDBServer
) -> None:
    """MySQL, REPEATABLE READ: the transaction's snapshot still says that our token was the last."""
    where = f"mysql:{mariadb_server.port}"
    with (
        a_table(where, "mysql", guarded=False) as (name, connection),
        contextlib.closing(sql_connection(where)) as other,
    ):
        rows = fencing.Table(name)
        rows.update(other, 5, {"id": 7}, {"value": "five"})
        cursor = other.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT fence FROM {name} WHERE id = 7")
        assert cursor.fetchone() == (5,)
        rows.update(connection, 6, {"id": 7}, {"value": "six"})
        with pytest.raises(StaleFence):
            rows.update(other, 5, {"id": 7}, {"value": "five again"})
        cursor.execute("ROLLBACK")


def test_a_trigger_by_tokens(where: str, database: str) -> None:
    with a_table(where, database, guarded=True) as (name, connection):
        write = WRITERS["trigger"](f"{where}|{name}")
        write(5, "five")
        with pytest.raises(StaleFence) as refused:
            write(4, "four")
        assert refused.value.highest == (None if database == "sqlite" else 5)
        assert refused.value.__cause__ is not None
        with pytest.raises(StaleFence), fencing.refusals(5):
            connection.cursor().execute(f"UPDATE {name} SET fence = NULL")
        with pytest.raises(Exception, match="no_such_column") as other, fencing.refusals(5):
            connection.cursor().execute(f"UPDATE {name} SET no_such_column = 1")
        assert not isinstance(other.value, StaleFence)
        # Beside the statement's own comparison.
        rows = fencing.Table(name)
        rows.update(connection, 6, {"id": 7}, {"value": "six"})
        with pytest.raises(StaleFence):
            rows.update(connection, 5, {"id": 7}, {"value": "five"})
        assert value_in(connection, name) == "six"


def engine_url(where: str, asynchronous: bool) -> str:
    kind, _, rest = where.partition(":")
    return {
        "sqlite": f"sqlite:///{rest}",
        "mysql": f"mysql+{'aiomysql' if asynchronous else 'pymysql'}://root@127.0.0.1:{rest}/holdfast",
        "postgresql": f"postgresql+psycopg://postgres@127.0.0.1:{rest}/postgres",
    }[kind]


def test_sqlalchemy(where: str, database: str, table: tuple[str, Any]) -> None:
    name, connection = table
    rows = fencing.Table(name)
    engine = sqlalchemy.create_engine(engine_url(where, False))
    try:
        with engine.begin() as mine:
            rows.update(mine, 5, {"id": 7}, {"value": "five"})
        with Session(engine) as session:
            rows.update(session, 6, {"id": 7}, {"value": "six"})
            session.commit()
        for value in ("six", "again"):
            with engine.begin() as mine:
                rows.update(mine, 6, {"id": 7}, {"value": value})
        with engine.connect() as mine, pytest.raises(StaleFence):
            rows.update(mine, 5, {"id": 7}, {"value": "five"})
        for statement in fencing.trigger(name, engine.dialect.name):
            with engine.begin() as mine:
                mine.exec_driver_sql(statement)
        late = sqlalchemy.text(f"UPDATE {name} SET value = 'late', fence = 5 WHERE id = 7")
        with pytest.raises(StaleFence), fencing.refusals(5), engine.begin() as mine:
            mine.execute(late)
    finally:
        engine.dispose()
    assert value_in(connection, name) == "again"


async def by_asyncio(rows: afencing.Table, connection: Any) -> None:
    await rows.update(connection, 5, {"id": 7}, {"value": "five"})
    await rows.update(connection, 5, {"id": 7}, {"value": "five"})
    with pytest.raises(StaleFence) as refused:
        await rows.update(connection, 4, {"id": 7}, {"value": "four"})
    assert refused.value.highest == 5
    with pytest.raises(LookupError):
        await rows.update(connection, 4, {"id": 1}, {"value": "four"})


@pytest.mark.parametrize("database", ["mysql", "postgresql"])
def test_asyncio_drivers(where: str, table: tuple[str, Any]) -> None:
    name, connection = table
    rows = afencing.Table(name)
    port = int(where.rpartition(":")[2])

    async def work() -> None:
        if where.startswith("mysql"):
            mine = await aiomysql.connect(
                host="127.0.0.1", port=port, user="root", db="holdfast", autocommit=True
            )
            try:
                await by_asyncio(rows, mine)
            finally:
                await mine.ensure_closed()
            return
        async with await psycopg.AsyncConnection.connect(
            f"host=127.0.0.1 port={port} user=postgres dbname=postgres", autocommit=True
        ) as there:
            await by_asyncio(rows, there)

    asyncio.run(work())
    assert value_in(connection, name) == "five"


@pytest.mark.parametrize("database", ["mysql", "postgresql"])
def test_sqlalchemy_with_asyncio(where: str, table: tuple[str, Any]) -> None:
    name, connection = table
    rows = afencing.Table(name)

    async def work() -> None:
        engine = create_async_engine(engine_url(where, True))
        try:
            async with engine.begin() as mine:
                await by_asyncio(rows, mine)
            async with AsyncSession(engine) as session:
                await rows.update(session, 6, {"id": 7}, {"value": "six"})
                await session.commit()
        finally:
            await engine.dispose()

    asyncio.run(work())
    assert value_in(connection, name) == "six"
