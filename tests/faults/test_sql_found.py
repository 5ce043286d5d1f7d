"""What was found in the SQL backends by reading them again: a test each. On real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest

import holdfast
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from tests.faults.test_sql_bound import LONG, Acquiring, until, waits
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.home import HOST
from tests.servers.sql import SqlServer

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
