"""The connections to databases: exchanges, their end, and the pool, on real servers."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

from holdfast.backends.sql.session import Conflict, Gone, Refused, Session
from holdfast.errors import Misconfigured, Unavailable
from holdfast.ports.clock import now
from holdfast.testing import FaultProxy
from tests.faults.sql import PORTS, Ground, driver, settle
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.sql import SqlServer

pytestmark = pytest.mark.servers

SLEEP = {"mysql": "SELECT SLEEP(%s)", "postgresql": "SELECT pg_sleep(%s::float8)"}
KILL = {"mysql": "KILL {}", "postgresql": "SELECT pg_terminate_backend({})"}
COUNT = {
    "mysql": "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {}",
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
}


@pytest.fixture(params=["mysql", "postgresql"])
def server(
    request: pytest.FixtureRequest, mariadb_server: MariaDBServer, postgres_server: PostgresServer
) -> SqlServer:
    return mariadb_server if request.param == "mysql" else postgres_server


@pytest.fixture(params=PORTS)
def ground(request: pytest.FixtureRequest, server: SqlServer, monkeypatch: Any) -> Ground:
    return Ground(request.param, driver(server.url, monkeypatch))


def soon() -> float:
    return now() + 20


def gone(ground: Ground, server: SqlServer, number: int) -> bool:
    end = now() + 30  # PostgreSQL notices when its statement has ended
    while server.query(COUNT[ground.kind].format(number)) != "0":
        if now() > end:
            return False
    return True


async def ask(session: Session, text: str, *values: Any) -> Any:
    return (await session.run(text, values, soon())).rows[0][0]


def test_values_arrive_as_they_are(ground: Ground) -> None:
    async def work() -> None:
        session = await ground.session()
        name = ground.kind
        binary = "bytea" if name == "postgresql" else "binary"
        for value in (b"", b"\0\xff'\"\\%s", bytes(range(256))):
            cast = "%s::bytea" if name == "postgresql" else "CAST(%s AS BINARY)"
            assert await ask(session, f"SELECT {cast}", value) == value, binary
        for text in ("", "it's", '%s "\\" ; -- ü 🔒', "%d%%"):
            cast = "%s::text" if name == "postgresql" else "%s"
            assert await ask(session, f"SELECT {cast}", text) == text
        for number in (0, -1, 2**62):
            cast = "%s::bigint" if name == "postgresql" else "%s"
            assert await ask(session, f"SELECT {cast}", number) == number
        assert await ask(session, "SELECT NULL") is None
        assert await ask(session, "SELECT 7 %% 4") == 3
        session.close()
        await settle(ground)

    ground.run(work())


def test_a_batch_is_one_trip_and_stops_at_an_error(ground: Ground) -> None:
    async def work() -> None:
        session = await ground.session()
        two = await session.batch([("SELECT 1", ()), ("SELECT 2", ()), ("SELECT 1", ())], soon())
        assert [result.rows for result in two] == [[(1,)], [(2,)], [(1,)]]
        bad = [("BEGIN", ()), ("SELECT 3", ()), ("SELECT nothing", ()), ("SELECT 4", ())]
        for _ in range(2):
            with pytest.raises(Refused):
                await session.batch(bad, soon())
            await session.run("ROLLBACK", (), soon())
        assert session.usable
        assert await ask(session, "SELECT 4") == 4
        session.close()
        await settle(ground)

    ground.run(work())


def test_an_exchange_ends_at_its_deadline_and_the_session_with_it(
    ground: Ground, server: SqlServer
) -> None:
    async def work() -> int:
        session = await ground.session()
        began = now()
        with pytest.raises(Gone) as caught:
            await session.run(SLEEP[ground.kind], (12.0,), began + 0.2)
        assert 0.2 <= now() - began < 10
        assert caught.value.sent
        assert not session.usable
        with pytest.raises(Gone) as caught:
            await session.run("SELECT 1", (), soon())
        assert not caught.value.sent
        await settle(ground)
        return session.number

    assert gone(ground, server, ground.run(work()))


def test_a_killed_session_is_gone(ground: Ground, server: SqlServer) -> None:
    async def work() -> None:
        session = await ground.session()
        assert not session.looks_dead()
        server.query(KILL[ground.kind].format(session.number))
        assert gone(ground, server, session.number)
        await settle(ground)
        assert session.looks_dead()
        with pytest.raises(Gone):
            await session.run("SELECT 1", (), soon())
        await settle(ground)

    ground.run(work())


def test_deadlocks_are_conflicts(ground: Ground, server: SqlServer) -> None:
    server.query("CREATE TABLE IF NOT EXISTS deadlock (n INT PRIMARY KEY, v INT)") if (
        ground.kind == "postgresql"
    ) else server.query("CREATE TABLE IF NOT EXISTS holdfast.deadlock (n INT PRIMARY KEY, v INT)")

    def other(session: Session, met: list[BaseException], ready: threading.Event) -> None:
        ready.wait(20)
        met.append(outcome(session, 1))

    def outcome(session: Session, n: int) -> BaseException:
        try:
            drive_here(session.run("UPDATE deadlock SET v = v + 1 WHERE n = %s", (n,), soon()))
        except Refused as error:
            return error
        return BaseException()

    if ground.asynchronous:
        pytest.skip("one of the ports is enough: the codes are the same")
    drive_here = ground.run

    async def prepare() -> tuple[Session, Session]:
        a, b = await ground.session(), await ground.session()
        await a.run("DELETE FROM deadlock", (), soon())
        await a.run("INSERT INTO deadlock VALUES (1, 0), (2, 0)", (), soon())
        for session, n in ((a, 1), (b, 2)):
            await session.run("BEGIN", (), soon())
            await session.run("UPDATE deadlock SET v = 1 WHERE n = %s", (n,), soon())
        return a, b

    a, b = ground.run(prepare())
    met: list[BaseException] = []
    ready = threading.Event()
    thread = threading.Thread(target=other, args=(b, met, ready))
    thread.start()
    ready.set()
    met.append(outcome(a, 2))
    thread.join()
    assert sum(isinstance(error, Conflict) for error in met) == 1
    a.close()
    b.close()


def test_the_pool_has_a_limit_and_says_so(ground: Ground) -> None:
    async def work() -> None:
        pool = ground.pool(2)
        one, two = await pool.take(soon()), await pool.take(soon())
        with pytest.raises(Unavailable, match="max_connections"):
            await pool.take(now() + 0.1)
        pool.give(one)
        pool.give(one)
        assert await pool.take(soon()) is one
        one.close()
        pool.give(one)
        three = await pool.take(soon())
        assert three is not one
        pool.give(two)
        pool.give(three)
        pool.close()
        assert pool.taken == 0
        await settle(ground)

    ground.run(work())


def test_who_waits_for_a_session_gets_the_next(server: SqlServer, monkeypatch: Any) -> None:
    ground = Ground("sync", driver(server.url, monkeypatch))
    pool = ground.pool(1)
    held = ground.run(pool.take(soon()))
    got: list[Session] = []

    def borrow() -> None:
        session = ground.run(pool.take(soon()))
        got.append(session)
        pool.give(session)

    threads = [threading.Thread(target=borrow) for _ in range(5)]
    for thread in threads:
        thread.start()
    pool.give(held)
    for thread in threads:
        thread.join(20)
    assert got == [held] * 5
    pool.close()


def test_a_child_has_nothing_of_its_parents_sessions(ground: Ground, server: SqlServer) -> None:
    async def work() -> None:
        session = await ground.session()
        pid = os.fork()
        if pid == 0:
            try:
                session.close()
            finally:
                os._exit(0 if not session.usable else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert await ask(session, "SELECT 1") == 1
        session.close()
        await settle(ground)

    ground.run(work())


def test_a_child_does_not_keep_its_parents_connection_open(
    ground: Ground, server: SqlServer
) -> None:
    ours, theirs = socket.socketpair()

    async def work() -> tuple[int, int]:
        session = await ground.session()
        pid = os.fork()
        if pid == 0:
            ours.close()
            theirs.recv(1)
            os._exit(0)
        number = session.number
        session.close()
        await settle(ground)
        return number, pid

    number, pid = ground.run(work())
    try:
        assert gone(ground, server, number)
    finally:
        ours.close()
        theirs.close()
        os.waitpid(pid, 0)


def test_nobody_is_there(ground: Ground, monkeypatch: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        where = f"{ground.kind}://me:secret@127.0.0.1:{port}/db"
        nobody = Ground("aio" if ground.asynchronous else "sync", driver(where, monkeypatch))
        with pytest.raises(Unavailable) as caught:
            nobody.run(_take(nobody))
    assert "secret" not in str(caught.value)


def test_a_wrong_database_is_told_at_once(
    ground: Ground, server: SqlServer, monkeypatch: Any
) -> None:
    where = server.url.rpartition("/")[0] + "/no_such_database"
    wrong = Ground("aio" if ground.asynchronous else "sync", driver(where, monkeypatch))
    with pytest.raises(Misconfigured):
        wrong.run(_take(wrong))


def test_a_login_ends_at_its_deadline(ground: Ground, server: SqlServer, monkeypatch: Any) -> None:
    with FaultProxy(("127.0.0.1", server.port), framing="raw") as proxy:
        proxy.hold("to_client")
        where = server.url.replace(str(server.port), str(proxy.port))
        slow = Ground("aio" if ground.asynchronous else "sync", driver(where, monkeypatch))
        began = now()
        with pytest.raises(Unavailable):
            slow.run(_take(slow, 0.3))
        assert 0.3 <= now() - began < 8


async def _take(ground: Ground, seconds: float = 5.0) -> None:
    try:
        await ground.pool().take(now() + seconds)
    finally:
        await settle(ground)


def test_an_answer_that_is_late_can_be_waited_for_again(ground: Ground) -> None:
    async def work() -> None:
        session = await ground.session()
        text = SLEEP[ground.kind]
        await session.begin(
            [("SELECT 5", ()), (text, (6.0,)), ("SELECT 6", ())], soon(), early=True
        )
        began = now()
        first = await session.next(soon())
        assert first is not None
        assert first.rows == [(5,)]
        assert now() - began < 5, "it waited for the statement behind it"
        assert await session.next(now() + 0.1) is None
        assert await session.next(now() + 0.1) is None
        assert session.awaited == 2
        assert await session.next(soon()) is not None
        last = await session.next(soon())
        assert last is not None
        assert last.rows == [(6,)]
        assert session.awaited == 0
        assert await ask(session, "SELECT 7") == 7
        session.close()
        await settle(ground)

    ground.run(work())


def test_a_session_is_cut_while_somebody_waits_for_it(server: SqlServer, monkeypatch: Any) -> None:
    ground = Ground("sync", driver(server.url, monkeypatch))
    session = ground.run(ground.session())
    text = SLEEP[ground.kind]
    timer = threading.Timer(0.1, session.cut)
    timer.start()
    began = now()
    with pytest.raises(Gone):
        ground.run(session.run(text, (15.0,), soon()))
    assert now() - began < 12
    timer.join()


@pytest.mark.req("law 4")
def test_an_answer_that_stops_in_its_middle_is_given_up(
    mariadb_server: MariaDBServer, monkeypatch: Any
) -> None:
    """PyMySQL reads a packet to its end: a second late at most, the kernel ends that."""
    ground = Ground("sync", driver(mariadb_server.url, monkeypatch))
    session: Any = ground.run(ground.session())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.dup2(theirs.fileno(), session.fileno())  # from here on we are the server
        session._limited = 0
        ours.sendall(b"\x07\0")
        began = now()
        with pytest.raises(Gone) as caught:
            ground.run(session.run("SELECT 1", (), began + 0.5))
        assert caught.value.sent
        assert 0.5 < now() - began < 10
        assert not session.usable
