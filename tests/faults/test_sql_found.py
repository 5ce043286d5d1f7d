"""What was found in the SQL backends by reading them again: a test each. On real servers.

Over 400 lines: a list of cases, each read by itself, that share two servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest

import holdfast
from holdfast import aio
from holdfast.backends.mysql.speech import AdvisorySpeech as OfMySQL
from holdfast.backends.postgres.speech import AdvisorySpeech as OfPostgres
from holdfast.backends.postgres.text import refused_login
from holdfast.backends.sql import bells
from holdfast.backends.sql.gate import Gate
from holdfast.backends.sql.session import Full, Gone
from holdfast.ports.clock import now
from holdfast.ports.thread import drive, outside
from holdfast.testing import FaultProxy
from tests.faults.sql import PORTS, Ground, driver
from tests.faults.test_sql_bound import LONG, Acquiring, waits
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.home import HOST
from tests.servers.pgbouncer import PgBouncer
from tests.servers.sql import SqlServer
from tests.waiting import until

pytestmark = pytest.mark.servers

LIMIT = {
    "mysql": ("SET GLOBAL max_statement_time = 0.2", "SET GLOBAL max_statement_time = 0"),
    "postgresql": (
        "ALTER ROLE postgres SET statement_timeout = 200",
        "ALTER ROLE postgres RESET statement_timeout",
    ),
}


@pytest.fixture(params=["mysql", "postgresql"])
def server(
    request: pytest.FixtureRequest, mariadb_server: MariaDBServer, postgres_server: PostgresServer
) -> SqlServer:
    return mariadb_server if request.param == "mysql" else postgres_server


@contextlib.contextmanager
def no_tokens(server: SqlServer) -> Iterator[None]:
    """Somebody has locked what tokens come from, in a transaction that goes on."""
    other: Any
    if isinstance(server, MariaDBServer):
        other = pymysql.connect(host=HOST, port=server.port, user="root", database="holdfast")
        text = "SELECT * FROM holdfast_fence FOR UPDATE"
    else:
        other = psycopg.connect(server.url)
        text = "ALTER SEQUENCE holdfast_fence CACHE 1"
    with contextlib.closing(other), other.cursor() as cursor:
        cursor.execute(text)
        yield


@pytest.mark.req("law 3", "R2")
@pytest.mark.parametrize("limited", [True, False], ids=["statement timeout", "given up"])
@pytest.mark.parametrize("queue", [False, True], ids=["a try", "a wait"])
def test_who_has_the_lock_and_gets_no_token_does_not_keep_it(
    server: SqlServer, queue: bool, limited: bool
) -> None:
    """A session's lock outlives the statement that took it, also one that failed behind it."""
    kind = server.url.partition(":")[0]
    url = f"{server.url}?strategy=advisory" + ("&fence=1" if kind == "mysql" else "")
    begin, end = LIMIT[kind]
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(holdfast.connect(url))
        if limited:
            server.query(begin)
            stack.callback(server.query, end)
        here = stack.enter_context(holdfast.connect(url, request_timeout=2.0))
        with here.lock("token"):
            pass  # its connection is ready
        ahead = there.lock("token").acquire() if queue else None
        with no_tokens(server):
            waiter = Acquiring(here.lock("token"), 1.5 if queue else 0)
            if ahead is not None:
                until(lambda: waits(here, "token"), "it never stood in line")
                ahead.release()
            with contextlib.suppress(holdfast.Unavailable, AssertionError):
                waiter.result()
            assert waiter.lease is None
        for client in (here, there):
            lease = client.lock("token").acquire(timeout=LONG)
            assert lease is not None, "nobody has it, and nobody can have it"
            lease.release()


@pytest.mark.req("R40", "R42", "R8")
@pytest.mark.parametrize("ending", ["release", "given up", "given up, unanswered"])
def test_an_optimistic_holder_hands_over_to_who_stands_in_line(
    server: SqlServer, ending: str
) -> None:
    """`row` and `optimistic` share their tables: a holder of one may have waiters of the other."""
    with (
        holdfast.connect(f"{server.url}?strategy=optimistic") as swaps,
        holdfast.connect(server.url) as rows,
    ):
        name = f"mixed {ending}"
        lease = swaps.lock(name, ttl=60).acquire()
        assert lease is not None
        waiter = Acquiring(rows.lock(name))
        until(lambda: bool(rows.inspect(name)[0].waiters), "it never stood in line")
        if ending == "release":
            assert lease.release() is True
        else:
            (hold,) = swaps._current.keeper._holds.values()
            withdraw = swaps._current.backend.withdraw
            drive(withdraw(hold.claim, ending != "given up", now() + LONG))
        assert waiter.result().release() is True


@pytest.mark.req("Galera, PgBouncer", "law 2")
def test_behind_a_pooler_a_server_that_is_cut_off_is_no_refusal(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer tells of it by a code of its own. What was asked may have been done."""
    with FaultProxy((HOST, postgres_server.port)) as way:
        behind: Any = SimpleNamespace(port=way.port)
        with PgBouncer(behind, "transaction") as pooler:
            ground = Ground("sync", driver(pooler.url, monkeypatch))
            session = ground.run(ground.session())
            cutting = threading.Timer(0.2, way.reset)
            cutting.start()
            with pytest.raises(Gone) as caught:
                ground.run(session.run("SELECT pg_sleep(30)", (), now() + LONG))
            cutting.join()
            assert caught.value.sent
            assert caught.value.code, "it was the pooler that told"
            assert not session.usable


@pytest.mark.req("Galera, PgBouncer", "wrong credentials")
@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  no more connections allowed (max_client_conn)",
        "FATAL:  server login has been failing, try again later (server_login_retry)",
        "FATAL:  pgbouncer cannot connect to server",
        "FATAL:  terminating connection due to administrator command",
        "FATAL:  canceling authentication due to timeout",
    ],
)
def test_a_login_that_may_succeed_later_is_not_misconfigured(said: str) -> None:
    assert isinstance(refused_login(said), Full)
    assert not isinstance(refused_login('FATAL:  role "app" does not exist'), Full)


@pytest.mark.req("R9")
def test_where_named_locks_are_refused_who_waits_polls(
    mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Galera. It once asked as fast as it could."""
    asked: list[bool | None] = []
    wait = bells.Bells.wait

    async def listening(self: bells.Bells, owner: bytes, until: float) -> bool | None:
        asked.append(await wait(self, owner, until))
        return asked[-1]

    monkeypatch.setattr(bells.Bells, "wait", listening)
    monkeypatch.setattr(bells, "_name", lambda owner: "x" * 300)  # longer than the server takes
    url = f"{mariadb_server.url}?wake=named-lock&table=dumb"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x").acquire()
        assert lease is not None
        begun = now()
        assert there.lock("x").acquire(timeout=1.0) is None
        assert set(asked) == {None}
        # Every 0.25 s, and those that the heartbeat and the room called.
        assert len(asked) <= 4 + 4 * (now() - begun)
        waiter = Acquiring(there.lock("x"))
        until(lambda: bool(here.inspect("x")[0].waiters), "it never stood in line")
        lease.release()
        assert waiter.result().release() is True


@pytest.mark.req("R41")
def test_nothing_is_asked_for_that_only_some_servers_have() -> None:
    """MySQL has no TIME_MS, and PostgreSQL before 14 no `waitstart`."""
    of_mysql, _ = OfMySQL("holdfast", "db", False, False).holders("x")
    of_postgres, _ = OfPostgres("holdfast", False).holders("x")
    assert "TIME_MS" not in of_mysql
    assert "waitstart" not in of_postgres


@pytest.mark.req("law 5", "R6")
@pytest.mark.parametrize("waiting", [True, False], ids=["waits for its turn", "looks just then"])
def test_a_lease_that_is_ended_twice_takes_no_other_along(
    server: SqlServer, waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper and the sitter give the same lease up, and one of them is slow: its connection is
    another lease's by then."""
    url = f"{server.url}?strategy=advisory"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        backend: Any = here._current.backend
        first = here.lock("first", ttl=LONG).acquire()
        assert first is not None
        record = next(iter(backend._records.values()))
        session = record.session
        second: list[Any] = []

        def other_one_is_done() -> None:
            drive(backend.release(first._hold.grant, False, now() + LONG))
            second.append(outside(here.lock("second", ttl=LONG).acquire))

        async def slow(self: Gate, deadline: float) -> bool:
            monkeypatch.undo()
            other_one_is_done()
            return False

        async def looks(session: object, deadline: float) -> bool:
            monkeypatch.undo()
            session_of.awaited = 0
            other_one_is_done()
            return False

        session_of: Any = session
        if waiting:
            monkeypatch.setattr(Gate, "enter", slow)
        else:
            monkeypatch.setattr(Gate, "taken", True)
            session_of.awaited = 1  # the other one waits for an answer
            monkeypatch.setattr(backend, "_cancelled", looks)
        drive(backend._remove(record, now() + 2))
        assert second[0].held
        assert there.lock("second").acquire(timeout=0) is None
        assert second[0].release() is True


SETTINGS = {
    "sql_select_limit": ("1", "DEFAULT"),
    "completion_type": ("1", "DEFAULT"),
    "sql_mode": ("'ORACLE'", "DEFAULT"),
    "max_join_size": ("1", "DEFAULT"),
}


@pytest.mark.req("R1", "R10")
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_mysql_was_told_to_do_for_everybody_does_not_touch_us(
    mariadb_server: MariaDBServer, setting: str
) -> None:
    """A line that was read in part let a writer in beside readers; and a COMMIT that begins the
    next transaction left a hold uncommitted."""
    url = f"{mariadb_server.url}?max_connections=1"
    value, usual = SETTINGS[setting]
    mariadb_server.query(f"SET GLOBAL {setting} = {value}")
    try:
        with holdfast.connect(url) as here, holdfast.connect(url) as there:
            readers = [here.rwlock("x").read().acquire() for _ in range(4)]
            for reader in readers[:2]:
                assert reader is not None
                reader.release()
            assert there.rwlock("x").write().acquire(timeout=0) is None
            with here.lock("committed"):
                held = "SELECT COUNT(*) FROM holdfast.holdfast WHERE name = 'committed'"
                assert mariadb_server.query(f"{held} AND owner <> ''") == "1"
    finally:
        mariadb_server.query(f"SET GLOBAL {setting} = {usual}")


@pytest.mark.req("R1", "R20")
@pytest.mark.parametrize("output", ["escape", "hex"])
def test_bytes_are_read_however_postgresql_writes_them(
    postgres_server: PostgresServer, output: str
) -> None:
    postgres_server.query(f"ALTER ROLE postgres SET bytea_output = {output}")
    try:
        with holdfast.connect(postgres_server.url) as here:
            name = "a\\b\0\x7f é"
            with here.rwlock(name).read() as first, here.rwlock(name).read():
                first.renew()
                assert [len(lock.holders) for lock in here.inspect(name)] == [2]
                assert here.inspect(name)[0].name == name
                assert here.rwlock(name).write().acquire(timeout=0) is None
    finally:
        postgres_server.query("ALTER ROLE postgres RESET bytea_output")


@pytest.mark.req("R7", "B7")
@pytest.mark.parametrize("info", ["garbage", "[1]", "null", '{"host":{}}', "\xff"])
def test_what_somebody_else_wrote_about_a_holder_is_in_nobodys_way(
    server: SqlServer, info: str
) -> None:
    mysql = isinstance(server, MariaDBServer)
    text = info.encode("latin-1").hex()
    value = f"x'{text}'" if mysql else f"'\\x{text}'::bytea"
    table = "holdfast.holdfast" if mysql else "holdfast"
    with holdfast.connect(server.url) as here, holdfast.connect(server.url) as there:
        with here.lock("x", ttl=LONG):
            server.query(f"UPDATE {table} SET info = {value} WHERE name = 'x'")
            assert there.lock("x").acquire(timeout=0) is None
            assert len(there.inspect("x")[0].holders) == 1
            waiter = Acquiring(there.lock("x"))
            until(lambda: bool(here.inspect("x")[0].waiters), "it never stood in line")
        assert waiter.result().release() is True


@pytest.mark.req("R1")
def test_a_claim_of_a_mode_that_nobody_knows_excludes_all_others(server: SqlServer) -> None:
    claims = "holdfast.holdfast_claims" if isinstance(server, MariaDBServer) else "holdfast_claims"
    with holdfast.connect(server.url) as here, holdfast.connect(server.url) as there:
        with here.rwlock("x", ttl=LONG).read():
            for mode in (7, -1):
                server.query(f"UPDATE {claims} SET mode = {mode} WHERE name = 'x'")
                assert there.rwlock("x").read().acquire(timeout=0) is None
                assert there.semaphore("x", 5).acquire(timeout=0) is None
                assert len(there.inspect("x")[0].holders) == 1
        with there.rwlock("x").write():
            pass


@pytest.mark.parametrize("port", PORTS)
def test_what_is_no_mysql_is_unavailable(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what PyMySQL cannot make head or tail of."""
    with socket.create_server((HOST, 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(b"\0" * 1000)

        threading.Thread(target=answer, daemon=True).start()
        address = f"mysql://app@{HOST}:{listening.getsockname()[1]}/holdfast"
        ground = Ground(port, driver(address, monkeypatch))
        with pytest.raises(Gone):
            ground.run(ground.session())


def test_tables_that_are_missed_by_another_thread_meanwhile(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between sending a session's settings and reading the answer, in which no version is then."""
    with holdfast.connect(server.url) as here:
        with here.lock("x"):
            pass
        desk: Any = here._current.backend
        desk = desk._desk
        session = drive(desk.connect(now() + LONG))
        batch = session.batch

        async def noticed(*asked: Any) -> Any:
            results = await batch(*asked)
            desk._ready = False
            return results

        monkeypatch.setattr(session, "batch", noticed)
        drive(desk._prepare(session, now() + LONG))
        assert "patience" in session.settings
        session.close()
        with here.lock("x"):
            pass


@pytest.mark.req("R7")
def test_a_column_that_is_missing_is_said_to_be(server: SqlServer) -> None:
    """At once, and not after asking again and again."""
    url = f"{server.url}?table=altered"
    table = "holdfast.altered" if isinstance(server, MariaDBServer) else "altered"
    with holdfast.connect(url) as here, here.lock("x"):
        pass
    try:
        server.query(f"ALTER TABLE {table} DROP COLUMN info")
        with holdfast.connect(url, request_timeout=LONG) as here:
            begun = now()
            with pytest.raises(holdfast.Misconfigured, match="not as holdfast makes them"):
                here.lock("x").acquire()
            assert now() - begun < LONG
    finally:
        for part in ("", "_claims", "_cells", "_meta"):
            server.query(f"DROP TABLE {table}{part}")


@pytest.mark.req("law 3", "R3")
@pytest.mark.parametrize("strategy", ["advisory", "for-update"])
def test_who_ends_its_own_session_ends_no_other_that_has_its_number_now(
    mariadb_server: MariaDBServer, strategy: str
) -> None:
    """A server that was restarted counts from the beginning, and by its unix socket all come from
    the same address."""
    socket_file = mariadb_server.query("SELECT @@socket")
    mariadb_server.query("GRANT ALL ON *.* TO root@localhost")
    url = f"mysql://root@/holdfast?strategy={strategy}&socket={socket_file}"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        first, second = here.lock("first", ttl=LONG).acquire(), there.lock("second").acquire()
        assert first is not None
        assert second is not None
        mine: Any = here._current.backend
        theirs: Any = there._current.backend
        session = next(iter(mine._records.values())).session
        other = next(iter(theirs._records.values())).session
        number, session.number = session.number, other.number
        drive(mine._ended(session, now() + 2))
        assert second.renew() > 0
        session.number = number
        assert drive(mine._ended(session, now() + LONG)) is True
        with there.lock("first", timeout=LONG):
            pass
        assert second.release() is True


@pytest.mark.req("law 2", "R7")
@pytest.mark.parametrize("port", PORTS)
def test_who_waits_for_its_own_clients_turn_is_not_told_that_the_store_is_silent(
    server: SqlServer, port: str
) -> None:
    """A hundred of one client stood in line for its connections for longer than `request_timeout`,
    and were told that the store did not answer."""
    crowd, patience = 150, 2.0
    with FaultProxy((HOST, server.port)) as way:
        url = server.url.replace(f":{server.port}/", f":{way.port}/")
        url += f"?table=crowd_{port}&max_connections=2&request_timeout={patience}"

        def all_acquire(name: str) -> list[object]:
            found: list[object] = []

            def one(locks: holdfast.Locks) -> None:
                try:
                    with locks.lock(name):
                        found.append(None)
                except holdfast.HoldfastError as error:
                    found.append(error)

            with holdfast.connect(url) as locks:
                threads = [threading.Thread(target=one, args=(locks,)) for _ in range(crowd)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            return found

        async def all_acquire_as_tasks(name: str) -> list[object]:
            async with aio.connect(url) as locks:

                async def one() -> None:
                    async with locks.lock(name):
                        pass

                return await asyncio.gather(*(one() for _ in range(crowd)), return_exceptions=True)

        def ask(name: str) -> list[object]:
            if port == "aio":
                return asyncio.run(all_acquire_as_tasks(name))
            return all_acquire(name)

        with holdfast.connect(url, request_timeout=10) as locks, locks.lock("tables"):
            pass
        with way.delay(0.01):
            begun = now()
            assert ask("x") == [None] * crowd
            assert now() - begun > patience
        with way.blackhole():
            begun = now()
            assert {type(answer) for answer in ask("y")} == {holdfast.Unavailable}
            assert now() - begun < 3 * patience + 4  # and not one after another


@pytest.mark.req("R8", "R9", "waiter paused, then granted")
def test_who_looks_late_beside_many_tombstones_still_stands_in_line(server: SqlServer) -> None:
    """It was stopped for longer than its patience: its row was first deleted with all that had
    expired, and then refreshed, which found none. It believed to stand in line."""
    name = "late"
    claims = "holdfast.holdfast_claims" if isinstance(server, MariaDBServer) else "holdfast_claims"
    rows = f"FROM {claims} WHERE name = '{name}' AND kind = 0"
    columns = (
        "(name, owner, kind, mode, permits, most, ttl, patience, since, expires, look_at, client, "
        "info)"
    )
    with contextlib.ExitStack() as stack:
        ahead, first, late, next_one = (
            stack.enter_context(holdfast.connect(server.url)) for _ in range(4)
        )
        held = ahead.lock(name, ttl=300).acquire()
        assert held
        waiters: list[Acquiring] = []
        for client in (first, late):
            waiters.append(Acquiring(client.lock(name, ttl=60)))
            until(lambda: server.query(f"SELECT count(*) {rows}") == str(len(waiters)))
        (ticket,) = late._current.backend._room.tickets()  # type: ignore[attr-defined]
        place = server.query(f"SELECT max(place) {rows}")
        server.query(f"UPDATE {claims} SET expires = since WHERE place = {place}")
        graves = ", ".join(
            f"('{name}', 'grave {number}', 2, 0, 0, 0, 1000000, 0, 1, 2, 0, '', '')"
            for number in range(4)
        )
        server.query(f"INSERT INTO {claims} {columns} VALUES {graves}")
        ticket.look()
        left = f"SELECT count(*) FROM {claims} WHERE name = '{name}' AND kind = 2"
        until(lambda: server.query(left) == "0", "the tombstones are swept")
        assert server.query(f"SELECT max(place) {rows}") == place, "it is still in line"
        waiters.append(Acquiring(next_one.lock(name, ttl=60)))
        until(lambda: server.query(f"SELECT count(*) {rows}") == "3", "it stands behind them")
        held.release()
        for waiter in waiters:
            assert waiter.result().release() is True
