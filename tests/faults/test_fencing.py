"""Gates on the real stores: a holder that was stopped wakes up late, and its write is refused.

The lock and the resource are in two stores wherever they can be: the token is all they share.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiomysql
import psycopg
import pytest
import redis
import redis.asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import holdfast
from holdfast import Misconfigured, StaleFence, Unsupported, aio, fencing
from holdfast.fencing import aio as afencing
from holdfast.testing import FaultProxy
from tests.faults.late import PATIENCE, WRITERS, Write, sql_connection, stopped_holder
from tests.servers import EtcdServer, MariaDBServer, RedisCluster, RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.req("B1")]

_numbers = itertools.count()


class Place:
    """Where a value is that a gate guards: how gates and children are told, and how it is read."""

    def __init__(self, kind: str, place: str, url: str, read: Callable[[], str]) -> None:
        self.kind = kind
        self.place = place
        self.url = url  # of the locks
        self.read = read
        self.write: Write = WRITERS[kind](place)


DATABASES = ("sqlite", "mysql", "postgresql")
KINDS = (
    *(f"{kind}-{database}" for kind in ("table", "trigger") for database in DATABASES),
    "redis", "etcd", "file",
)  # fmt: skip


def sql_place(request: pytest.FixtureRequest, database: str, path: Path) -> str:
    if database == "sqlite":
        return f"sqlite:{path / 'resource.db'}"
    fixture = {"mysql": "mariadb_server", "postgresql": "postgres_server"}[database]
    return f"{database}:{request.getfixturevalue(fixture).port}"


@contextlib.contextmanager
def a_table(where: str, database: str, guarded: bool) -> Iterator[tuple[str, Any]]:
    """A table with row 7, which nobody has written yet; and a connection to look."""
    name = f"account{next(_numbers)}_{uuid.uuid4().hex[:8]}"
    with contextlib.closing(sql_connection(where)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, value TEXT, fence BIGINT)")
        cursor.execute(f"INSERT INTO {name} (id, value) VALUES (7, 'old'), (8, 'other')")
        if guarded:
            for _ in range(2):  # harmless where it is there already
                for statement in fencing.trigger(name, database):
                    cursor.execute(statement)
        yield name, connection
        cursor.execute(f"DROP TABLE {name}")


def value_in(connection: Any, table: str) -> str:
    cursor = connection.cursor()
    cursor.execute(f"SELECT value FROM {table} WHERE id = 7")
    return str(cursor.fetchone()[0])


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, url: str) -> Iterator[Place]:
    kind, _, database = request.param.partition("-")
    if database:
        where = sql_place(request, database, tmp_path)
        with a_table(where, database, kind == "trigger") as (name, connection):
            yield Place(kind, f"{where}|{name}", url, lambda: value_in(connection, name))
    elif kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        key = f"account:{uuid.uuid4()}"
        yield Place(kind, f"{server.url}|{key}", url, lambda: str(server.call("GET", key)))
        server.call("DEL", key, f"{{{key}}}:fence")
    elif kind == "etcd":
        etcd: EtcdServer = request.getfixturevalue("etcd_server")
        key = f"account/{uuid.uuid4()}"
        yield Place(kind, key, etcd.url, lambda: etcd_value(etcd, key))
    else:
        path = tmp_path / "account.txt"
        yield Place(kind, str(path), url, path.read_text)


def etcd_value(server: EtcdServer, key: str) -> str:
    encoded = base64.b64encode(key.encode()).decode()
    found = server.api("/v3/kv/range", {"key": encoded}).get("kvs", [])
    return base64.b64decode(found[0]["value"]).decode() if found else ""


@pytest.mark.req("client paused longer than its lease")
def test_a_stopped_holder_wakes_up_late_and_is_refused(place: Place) -> None:
    name = f"account-{uuid.uuid4()}"
    with (
        stopped_holder(place.url, name, place.kind, place.place) as wake,
        holdfast.connect(place.url) as locks,
        locks.lock(name, timeout=PATIENCE) as lease,  # when the stopped one's lease is over
    ):
        place.write(lease, "new")
        assert wake() == "refused"
        assert place.read() == "new"
        place.write(lease, "newer")  # a holder may write more than once
        place.write(lease, "newer")  # and the same again
        assert place.read() == "newer"


@pytest.mark.req("client paused longer than its lease")
@pytest.mark.parametrize("place", ["etcd", "file"], indirect=True)
def test_who_wakes_up_before_anybody_else_has_written(place: Place) -> None:
    """A gate orders those who write: nobody has come before, so it lets in who is late. etcd need
    not have seen anybody; it knows that the lease is over."""
    name = f"account-{uuid.uuid4()}"
    with stopped_holder(place.url, name, place.kind, place.place) as wake:
        with holdfast.connect(place.url) as locks, locks.lock(name, timeout=PATIENCE):
            pass
        knows = place.kind == "etcd"
        assert wake() == ("refused" if knows else "accepted")
        assert place.read() == ("" if knows else "late")


def test_permits_and_shared_leases_are_refused(place: Place) -> None:
    with holdfast.connect(place.url) as locks:
        name = f"account-{uuid.uuid4()}"
        with locks.rwlock(name).read() as shared, pytest.raises(Misconfigured, match="exclusive"):
            place.write(shared, "wrong")
        if place.kind != "etcd":
            with (
                locks.semaphore(name, 2) as permit,
                pytest.raises(Misconfigured, match="a permit"),
            ):
                place.write(permit, "wrong")


# -- tables ----------------------------------------------------------------------------------------


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


# -- Redis -----------------------------------------------------------------------------------------


def test_redis_by_tokens(redis_server: RedisServer) -> None:
    key = f"account:{uuid.uuid4()}"
    with redis.Redis.from_url(redis_server.url) as client:
        gate = fencing.RedisKey(client, key)
        assert gate.highest() == 0
        # Two tokens that are one number as doubles.
        high = 2**62 + 1
        gate.set(high, "high")
        with pytest.raises(StaleFence) as refused:
            gate.set(high - 1, "low")
        assert (refused.value.token, refused.value.highest) == (high - 1, high)
        with pytest.raises(StaleFence):
            gate.set(9, "a number of fewer digits")
        assert client.get(key) == b"high"
        assert gate.delete(high) is True
        assert gate.delete(high) is False
        assert gate.highest() == high  # outlives the value
        assert gate.call(high, "HSET", "balance", 150, "name", b"\xff") == 2
        assert gate.call(high, "HINCRBY", "balance", -50) == 100
        assert gate.call(high, "HGET", "nothing") is None
        with pytest.raises(redis.ResponseError):
            gate.call(high + 1, "INCR")  # a hash is no number: nothing happened,
        assert gate.highest() == high  # and nothing is noted
        gate.check(high + 1)
        with pytest.raises(StaleFence):
            gate.call(high, "HSET", "balance", 0)
        client.delete(key, f"{{{key}}}:fence")


def test_redis_forgets_what_it_may(redis_server: RedisServer) -> None:
    key = f"account:{uuid.uuid4()}"
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        gate = fencing.RedisKey(client, key, fence_key=f"{key}-token", forget_after=3600)
        gate.set(5, "five", ttl=60)
        assert 0 < client.pttl(key) <= 60_000
        assert 60_000 < client.pttl(f"{key}-token") <= 3_600_000
        with pytest.raises(StaleFence):
            gate.set(4, "four")
        client.delete(key, f"{key}-token")
        for wrong in (0, -1, float("nan"), True):
            with pytest.raises(Misconfigured):
                fencing.RedisKey(client, key, forget_after=wrong)
            with pytest.raises(Misconfigured):
                gate.set(5, "five", ttl=wrong)


@pytest.mark.parametrize("key", ["account:7", "{user7}:account", "a{b", b"raw{\xff}"])
def test_redis_cluster_keeps_both_keys_in_one_slot(
    redis_cluster: RedisCluster, key: str | bytes
) -> None:
    host, _, port = (
        redis_cluster.url.partition("://")[2].partition("/")[0].partition(",")[0].rpartition(":")
    )
    with redis.RedisCluster(host=host, port=int(port)) as client:
        gate = fencing.RedisKey(client, key)
        gate.set(5, "five")
        with pytest.raises(StaleFence):
            gate.set(4, "four")
        assert client.get(key) == b"five"
        client.delete(key)


def test_redis_with_asyncio(redis_server: RedisServer) -> None:
    key = f"account:{uuid.uuid4()}"

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            gate = afencing.RedisKey(client, key)
            await gate.set(5, "five")
            with pytest.raises(StaleFence):
                await gate.set(4, "four")
            assert await gate.call(5, "APPEND", "!") == 5
            await gate.check(6)
            assert await gate.highest() == 6
            with pytest.raises(StaleFence):
                await gate.delete(5)
            assert await client.get(key) == b"five!"
            assert await gate.delete(6) is True
            await client.delete(f"{{{key}}}:fence")

    asyncio.run(work())


# -- etcd ------------------------------------------------------------------------------------------


@pytest.mark.req("R60")
def test_a_transaction_takes_effect_while_the_lease_holds(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"
    one, two = f"{name}.one", f"{name}.two"
    with holdfast.connect(etcd_server.url) as locks:
        lease = locks.lock(name).acquire()
        assert lease is not None
        first = lease.transact(put={one: "1", two: b"2"})
        assert lease.transact(put={one: "3"}, delete=[two]) > first > lease.fence
        assert etcd_value(etcd_server, one) == "3"
        assert etcd_value(etcd_server, two) == ""
        lease.release()
        with pytest.raises(StaleFence, match="does not hold") as refused:
            lease.transact(put={one: "late"}, delete=[two])
        assert refused.value.token == lease.fence
        with locks.lock(name) as later:
            with pytest.raises(StaleFence):
                lease.transact(delete=[one])
            later.transact(delete=[one])
        assert etcd_value(etcd_server, one) == ""


@pytest.mark.req("R60")
def test_transactions_that_cannot_be(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"
    wrong: list[tuple[dict[str, str], list[str]]] = [
        ({}, []), ({"": "x"}, []), ({"a": "x"}, ["a"]), ({}, ["a", "a"]),
    ]  # fmt: skip
    with holdfast.connect(etcd_server.url) as locks:
        with locks.lock(name) as lease:
            for put, delete in wrong:
                with pytest.raises(Misconfigured):
                    lease.transact(put=put, delete=delete)
            with pytest.raises(Misconfigured, match="would hold the lock"):
                lease.transact(put={f"{name}/a": "x"})
        with locks.rwlock(name).read() as shared, pytest.raises(Misconfigured, match="exclusive"):
            shared.transact(put={"a": "x"})
    with (
        holdfast.connect("memory://") as elsewhere,
        elsewhere.lock("x") as other,
        pytest.raises(Unsupported, match="etcd"),
    ):
        other.transact(put={"a": "b"})


@pytest.mark.req("R60")
def test_a_transaction_with_asyncio(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"

    async def work() -> None:
        async with aio.connect(etcd_server.url) as locks:
            lease = await locks.lock(name).acquire()
            assert lease is not None
            await lease.transact(put={name: b"mine"})
            await locks.evict(name)
            with pytest.raises(StaleFence):
                await lease.transact(put={name: b"late"})
            await lease.release()

    asyncio.run(work())
    assert etcd_value(etcd_server, name) == "mine"


@pytest.mark.req("law 2", "R60")
def test_a_transaction_without_an_answer_is_not_done_again_in_secret(
    etcd_server: EtcdServer,
) -> None:
    name = f"config-{uuid.uuid4()}"
    with (
        FaultProxy(("127.0.0.1", etcd_server.port), framing="http2") as proxy,
        holdfast.connect(f"etcd://{proxy.host}:{proxy.port}", request_timeout=1.0) as locks,
        locks.lock(name) as lease,
    ):
        lease.transact(put={f"{name}.value": "one"})
        proxy.drop_reply(to=lambda frame: b"/etcdserverpb.KV/Txn" in frame)
        with pytest.raises(holdfast.Unavailable, match="not known"):
            lease.transact(put={f"{name}.value": "two"})
        assert etcd_value(etcd_server, f"{name}.value") == "two"  # it took effect
        proxy.heal()
        lease.transact(put={f"{name}.value": "two"})


@pytest.mark.req("law 8", "fork after acquire", "R60")
def test_a_forked_child_writes_nothing_by_its_parents_lease(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"
    with holdfast.connect(etcd_server.url) as locks, locks.lock(name) as lease:
        pid = os.fork()
        if pid == 0:
            try:
                lease.transact(put={name: "child"})
            except holdfast.LeaseLost:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.transact(put={f"{name}.value": "parent"})
    assert etcd_value(etcd_server, name) == ""
