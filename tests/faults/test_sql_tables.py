"""The tables: made at first use, of one version, swept; and optimistic work beside the locks."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import subprocess
import sys
import threading
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, Unsupported, aio
from holdfast.backends.sql.schema import VERSION
from tests.faults.redis import in_line, waiting
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.sql import SqlServer
from tests.waiting import until

pytestmark = pytest.mark.servers

_numbers = itertools.count()


class Place:
    """A database, and tables of one's own in it."""

    def __init__(self, server: SqlServer) -> None:
        self.server = server
        self.table = f"own{next(_numbers)}"
        self.url = f"{server.url}?table={self.table}"

    def query(self, text: str) -> str:
        if isinstance(self.server, MariaDBServer):
            return self.server.query(f"USE holdfast; {text}")
        return self.server.query(text)

    def rows(self) -> list[int]:
        """Of locks, claims and cells."""
        tables = (self.table, f"{self.table}_claims", f"{self.table}_cells")
        return [int(self.query(f"SELECT count(*) FROM {table}")) for table in tables]


@pytest.fixture(params=["mariadb", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    server: Any = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, MariaDBServer | PostgresServer)
    return Place(server)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.req("R42")
def test_many_make_the_tables_at_once(place: Place) -> None:
    errors: list[BaseException] = []

    def begin() -> None:
        try:
            with holdfast.connect(place.url, request_timeout=30) as locks, locks.lock("x"):
                pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert place.query(f"SELECT version FROM {place.table}_meta") == str(VERSION)


@pytest.mark.req("R42")
def test_who_may_not_create_is_told_what_to_do(place: Place) -> None:
    user = f"nobody{place.table}"
    if isinstance(place.server, MariaDBServer):
        place.query(f"CREATE USER {user}; GRANT SELECT ON holdfast.* TO {user}")
        url = place.url.replace("root@", f"{user}@")
    else:
        place.query(f"CREATE USER {user}")
        place.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        url = place.url.replace("postgres@", f"{user}@")
    with holdfast.connect(url) as locks, pytest.raises(Misconfigured, match="holdfast schema"):
        locks.lock("x").acquire()
    # What that command prints is all there is to it.
    printed = run("schema", place.url)
    assert printed.returncode == 0, printed.stderr
    place.query(printed.stdout)
    assert place.rows() == [0, 0, 0]
    with holdfast.connect(place.url) as locks, locks.lock("x") as lease:
        assert lease.held


@pytest.mark.req("R42")
@pytest.mark.parametrize(("version", "advice"), [(VERSION + 1, "Update holdfast"), (0, "Migrate")])
def test_tables_of_another_version_are_refused(place: Place, version: int, advice: str) -> None:
    """Before anything is written to them."""
    with holdfast.connect(place.url) as locks, locks.lock("x"):
        pass
    place.query(f"UPDATE {place.table}_meta SET version = {version}")
    before = place.rows()
    with holdfast.connect(place.url) as locks, pytest.raises(Misconfigured, match=advice):
        locks.lock("y").acquire()
    assert place.rows() == before


@pytest.mark.req("R42")
def test_tables_that_were_half_made_are_finished(place: Place) -> None:
    with holdfast.connect(place.url) as locks, locks.lock("x"):
        pass
    place.query(f"DELETE FROM {place.table}_meta")
    place.query(f"DROP TABLE {place.table}_cells")
    with holdfast.connect(place.url) as locks, locks.lock("x"):
        assert locks.optimistic("x").version() == 0
    assert place.query(f"SELECT version FROM {place.table}_meta") == str(VERSION)


def test_a_table_that_cannot_be_one_is_refused() -> None:
    for bad in ("a b", "x;y", 'x"', "", "1a", "a" * 41, "a.b.c"):
        with pytest.raises(Misconfigured):
            holdfast.connect("postgresql://localhost/db", table=bad)


@pytest.mark.req("R40", "R6")
def test_a_sweep_leaves_nothing_that_is_over_and_everything_that_is_not(place: Place) -> None:
    # What is lost is withdrawn, which leaves a tombstone for a ttl; so may a release.
    def rows_after_a_sweep() -> list[int]:
        done = run("sweep", place.url)
        assert done.returncode == 0, done.stderr
        return place.rows()

    with holdfast.connect(place.url) as locks:
        with locks.lock("free", ttl=5) as lease:
            token = lease.fence
        expired = locks.lock("expired", ttl=0.2, renew=False).acquire()
        reader = locks.rwlock("read", ttl=0.2, renew=False).read().acquire()
        held = locks.lock("held", ttl=5).acquire()
        assert expired is not None
        assert reader is not None
        assert held is not None
        assert locks.optimistic("kept").commit(0)
        with waiting(locks.lock("held", ttl=5), timeout=100) as waiter:
            in_line(locks, 1, "held")
            assert reader.lost.wait(20)
            assert expired.lost.wait(20)
            until(lambda: rows_after_a_sweep() == [1, 1, 1], "held, its waiter, and the version")
            held.release()
            waiter.result().release()
        assert locks.sweep(idle=60) == 0
        locks.sweep()
        assert place.rows() == [0, 0, 1]
        with locks.lock("free") as lease:
            assert lease.fence > token


@pytest.mark.req("B1")
def test_a_name_whose_token_is_ahead_of_the_clock_is_not_forgotten(place: Place) -> None:
    with holdfast.connect(place.url) as locks:
        with locks.lock("x"):
            pass
        ahead = 1 << 61
        place.query(f"UPDATE {place.table} SET version = {ahead}")
        locks.sweep()
        assert place.rows()[0] == 1
        with locks.lock("x") as lease:
            assert lease.fence == ahead + 1


@pytest.mark.req("R40", "R42")
def test_rows_and_optimistic_locks_exclude_one_another(place: Place) -> None:
    with (
        holdfast.connect(place.url) as rows,
        holdfast.connect(f"{place.url}&strategy=optimistic") as swaps,
    ):
        tokens: list[int] = []
        for one, other in ((rows, swaps), (swaps, rows), (rows, swaps)):
            with one.lock("x") as lease:
                tokens.append(lease.fence)
                assert other.lock("x").acquire(blocking=False) is None
        with rows.rwlock("x").read():
            assert swaps.lock("x").acquire(blocking=False) is None
        with swaps.lock("x", timeout=20) as lease:
            tokens.append(lease.fence)
        assert tokens == sorted(set(tokens))


@pytest.mark.req("R42")
def test_of_all_who_read_a_version_one_commits(place: Place) -> None:
    with holdfast.connect(place.url) as locks:
        document = locks.optimistic("document")
        assert document.version() == 0
        won: list[int | None] = []
        threads = [
            threading.Thread(target=lambda: won.append(document.commit(0))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (version,) = [number for number in won if number is not None]
        assert document.version() == version
        assert document.commit(0) is None
        later = document.commit(version)
        assert later is not None
        assert later > version
        for bad in (-1, True, "1"):
            with pytest.raises(Misconfigured):
                document.commit(bad)  # type: ignore[arg-type]


@pytest.mark.req("R42")
async def _count(url: str) -> int:
    async with aio.connect(url) as locks:
        counter = locks.optimistic("counter")

        async def add() -> None:
            while await counter.commit(await counter.version()) is None:
                pass

        first = await counter.commit(0)
        assert first is not None
        await asyncio.gather(*(add() for _ in range(5)))
        return await counter.version()


@pytest.mark.req("R42")
def test_optimistic_work_in_tasks(place: Place) -> None:
    assert asyncio.run(_count(place.url)) > 0
    assert asyncio.run(_count(f"memory://{secrets.token_hex(8)}")) > 0


def test_other_stores_have_nothing_to_make_or_to_sweep() -> None:
    with holdfast.connect("memory://") as locks:
        with pytest.raises(Unsupported):
            locks.schema()
        with pytest.raises(Unsupported):
            locks.sweep()


@pytest.mark.req("R40")
def test_a_login_makes_no_table_on_the_servers_disk(mariadb_server: MariaDBServer) -> None:
    """Nor do a hold, a wait, a hand-over, a look and a renewal: a temporary table on the disk costs
    more than all of them."""

    def tables() -> int:
        said = mariadb_server.query("SHOW GLOBAL STATUS LIKE 'Created_tmp_disk_tables'")
        return int(said.split()[1])

    url = f"{mariadb_server.url}?table=temporary"
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    before = tables()
    cost = tables() - before  # of asking that
    before = tables()
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x").acquire()
        assert lease is not None
        with waiting(there.lock("x")) as waiter:
            in_line(here, 1)
            lease.renew()
            lease.release()
            waiter.result().release()
        with here.rwlock("x").read(), there.rwlock("x").read():
            pass
    assert tables() - before == cost


@pytest.mark.req("R42")
def test_nobody_is_there() -> None:
    with (
        holdfast.connect("mysql://root@127.0.0.1:1/db", request_timeout=0.3) as locks,
        pytest.raises(Unavailable),
    ):
        locks.lock("x").acquire()
