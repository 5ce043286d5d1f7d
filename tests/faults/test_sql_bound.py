"""Locks that live as long as a connection: what ends connections, and what stands before them.

Over 400 lines: a list of cases, each read by itself, that share four strategies.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, LeaseLost, Misconfigured, Unavailable, Unsupported, aio
from holdfast.ports.clock import now
from holdfast.ports.thread import drive, outside
from holdfast.testing import FaultProxy
from tests.servers import MariaDBServer, PostgresServer, install
from tests.servers.pgbouncer import PgBouncer
from tests.servers.sql import SqlServer
from tests.waiting import until

pytestmark = pytest.mark.servers

BOTH = ["advisory", "for-update"]
LONG = 10.0

KILL = {
    "mysql": "KILL {}",
    "postgresql": "SELECT pg_terminate_backend({}, 5000)",
}


class Store:
    def __init__(self, server: SqlServer, strategy: str) -> None:
        self.server = server
        self.kind = server.url.partition(":")[0]
        fence = "&fence=1" if strategy == "advisory" and self.kind == "mysql" else ""
        self.query = f"strategy={strategy}{fence}"
        self.url = f"{server.url}?{self.query}"

    def kill(self, number: int) -> None:
        self.server.query(KILL[self.kind].format(number))


@pytest.fixture(params=["mysql", "postgresql"])
def server(
    request: pytest.FixtureRequest, mariadb_server: MariaDBServer, postgres_server: PostgresServer
) -> SqlServer:
    return mariadb_server if request.param == "mysql" else postgres_server


@pytest.fixture(params=[*BOTH, "advisory&scope=transaction"])
def store(request: pytest.FixtureRequest, server: SqlServer) -> Store:
    if "scope" in request.param and server.url.startswith("mysql"):
        pytest.skip("MySQL's locks are a session's")
    return Store(server, request.param)


@pytest.fixture
def connect(store: Store) -> Iterator[Callable[..., holdfast.Locks]]:
    clients: list[holdfast.Locks] = []

    def make(url: str = store.url, **options: Any) -> holdfast.Locks:
        clients.append(holdfast.connect(url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def pool(client: Any) -> Any:
    return client._current.backend._pool


def number(client: Any, name: str) -> int:
    """The connection of this client that holds, or waits for, a name."""
    records = client._current.backend._records.values()
    (found,) = [record.session.number for record in records if record.claim.name == name]
    return int(found)


def waits(client: Any, name: str) -> bool:
    records = list(client._current.backend._records.values())
    return any(
        r.claim.name == name and r.session is not None and r.session.awaited for r in records
    )


class Acquiring:
    """An acquire in a thread of its own."""

    def __init__(self, lock: holdfast.Lock, timeout: float = LONG) -> None:
        self.lease: holdfast.Lease | None = None
        self.error: BaseException | None = None
        self._lock, self._timeout = lock, timeout
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.lease = self._lock.acquire(timeout=self._timeout)
        except BaseException as error:
            self.error = error

    def result(self) -> holdfast.Lease:
        self._thread.join(LONG)
        if self.error is not None:
            raise self.error
        assert self.lease is not None
        return self.lease


# -- connections that end -------------------------------------------------------------------------


@pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "PostgreSQL backend terminated", "R21", "R41")
def test_a_holder_whose_connection_is_killed_is_told_soon(
    store: Store, connect: Callable[..., holdfast.Locks]
) -> None:
    """Within a look, though its next renewal is due in twenty seconds; and it is not made good."""
    here, there = connect(), connect()
    lease = here.lock("killed", ttl=60).acquire()
    assert lease is not None
    waiter = Acquiring(there.lock("killed"))
    until(lambda: waits(there, "killed"), "the other one waits")
    began = now()
    store.kill(number(here, "killed"))
    assert lease.lost.wait(LONG)
    assert now() - began < 15
    assert not lease.held
    with pytest.raises(LeaseLost):
        lease.renew()
    successor = waiter.result()
    assert successor.fence > lease.fence
    assert lease.release() is False
    assert successor.release() is True


@pytest.mark.req("PostgreSQL backend terminated", "R21", "R41")
def test_the_same_on_asyncio(store: Store) -> None:
    async def work() -> None:
        async with aio.connect(store.url) as here, aio.connect(store.url) as there:
            lease = await here.lock("killed").acquire()
            assert lease is not None
            waiter = asyncio.ensure_future(there.lock("killed").acquire(timeout=LONG))
            while not waits(there, "killed"):
                await asyncio.sleep(0.005)
            await asyncio.to_thread(store.kill, number(here, "killed"))
            assert await lease.lost.wait(LONG)
            successor = await waiter
            assert successor is not None
            assert successor.fence > lease.fence
            assert await lease.release() is False
            assert await successor.release() is True

    asyncio.run(work())


@pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "PostgreSQL backend terminated", "R41")
def test_a_waiter_whose_connection_is_killed_waits_again(
    store: Store, connect: Callable[..., holdfast.Locks]
) -> None:
    here, there = connect(), connect()
    lease = here.lock("killed").acquire()
    assert lease is not None
    waiter = Acquiring(there.lock("killed"))
    until(lambda: waits(there, "killed"), "the other one waits")
    killed = number(there, "killed")
    store.kill(killed)
    until(lambda: waits(there, "killed") and number(there, "killed") != killed, "it waits again")
    lease.release()
    assert waiter.result().release() is True


@pytest.mark.req("one-way partition", "R2", "R41")
def test_a_holder_behind_a_dead_line_loses_it_and_the_server_frees_it(
    store: Store, connect: Callable[..., holdfast.Locks]
) -> None:
    """Nothing arrives any more, no end either: both sides find out by the clock, ours first."""
    there = connect()
    with FaultProxy(("127.0.0.1", store.server.port), framing="raw") as proxy:
        url = store.url.replace(f":{store.server.port}/", f":{proxy.port}/")
        here = holdfast.connect(url, request_timeout=3)
        lease = here.lock("dead line", ttl=3).acquire()
        assert lease is not None
        proxy.blackhole()
        with there.lock("dead line", timeout=LONG) as successor:
            assert not lease.held
            assert successor.fence > lease.fence
        proxy.heal()
        here.close()


@pytest.mark.req("R41", "connection pool exhausted")
def test_the_connections_of_a_client_are_bounded(
    store: Store, connect: Callable[..., holdfast.Locks]
) -> None:
    client = connect(max_connections=2, request_timeout=2)
    one, two = client.lock("one").acquire(), client.lock("two").acquire()
    assert one is not None
    assert two is not None
    with pytest.raises(Unavailable, match="max_connections"):
        client.lock("three").acquire()
    waiter = Acquiring(client.lock("three"))
    one.release()
    three = waiter.result()
    assert pool(client).taken == 2
    three.release()
    two.release()


@pytest.mark.req("connection pool exhausted")
@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("kind", [MariaDBServer, PostgresServer])
def test_the_connections_of_the_server_are_used_up(
    kind: type[MariaDBServer] | type[PostgresServer], strategy: str
) -> None:
    """Says so, tells nobody that the lock is busy, and goes on when there is room again."""
    limit = "10"  # MariaDB's least; PostgreSQL keeps three for its administrators
    settings = {"max_connections": limit}
    if kind is MariaDBServer:
        settings = {"max-connections": limit}
    with kind(settings=settings) as server:
        if kind is PostgresServer:
            server.query("CREATE ROLE app LOGIN")
            server.query("GRANT CREATE ON SCHEMA public TO app")
        url = server.url.replace("postgres@", "app@") + f"?strategy={strategy}"
        with holdfast.connect(url, request_timeout=2) as client:
            held: list[holdfast.Lease] = []
            with pytest.raises(Unavailable, match=r"no more connections|too many"):
                for n in range(12):
                    lease = client.lock(f"x{n}").acquire()
                    assert lease is not None
                    held.append(lease)
            assert len(held) >= 2
            held.pop().release()
            again = client.lock("again").acquire(timeout=LONG)
            assert again is not None
            again.release()
            for lease in held:
                assert lease.release() is True


# -- waiting --------------------------------------------------------------------------------------


@pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "R7", "R41")
def test_who_waits_in_vain_keeps_its_connection(
    store: Store, connect: Callable[..., holdfast.Locks]
) -> None:
    here, there = connect(), connect()
    lease = here.lock("busy").acquire()
    assert lease is not None
    lock = there.lock("busy")
    assert lock.acquire(blocking=False) is None
    (session,) = pool(there)._idle
    for _ in range(3):
        began = now()
        assert lock.acquire(timeout=1.5) is None
        assert 0.2 <= now() - began < 8
    assert pool(there)._idle == [session]
    assert session.usable
    lease.release()
    assert lock.acquire(timeout=LONG)
    lock.release()


@pytest.mark.req("R8", "R41")
def test_a_statement_timeout_does_not_end_a_wait(
    store: Store, connect: Callable[..., holdfast.Locks]
) -> None:
    limits = {
        "mysql": "SET GLOBAL max_statement_time = {}",
        "postgresql": "ALTER ROLE postgres SET statement_timeout = {}",
    }[store.kind]
    here = connect()
    lease = here.lock("slow").acquire()
    assert lease is not None
    store.server.query(limits.format("0.2" if store.kind == "mysql" else "200"))
    try:
        waiter = Acquiring(connect().lock("slow"))
        time.sleep(1.0)  # several of those timeouts
        assert waiter.lease is None
        assert waiter.error is None
        lease.release()
        assert waiter.result().release() is True
    finally:
        store.server.query(limits.format("0"))


@pytest.mark.req("R8", "law 4")
def test_closing_a_client_ends_its_waits(store: Store) -> None:
    with holdfast.connect(store.url) as here:
        lease = here.lock("closing").acquire()
        assert lease is not None
        there = holdfast.connect(store.url)
        waiter = Acquiring(there.lock("closing"), timeout=2 * LONG)
        until(lambda: waits(there, "closing"), "the other one waits")
        began = now()
        there.close()
        with pytest.raises(holdfast.HoldfastError):
            waiter.result()
        assert now() - began < 15
        lease.release()


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.req("B1", "R41")
def test_a_holder_killed_before_it_has_its_token_is_no_holder(
    mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The H of for-update on MySQL: the token comes from another connection. Between the lock and
    the token the lock's connection is killed, a successor takes lock and token, and then the first
    one's token comes, and is larger."""
    store = Store(mariadb_server, "for-update")
    with holdfast.connect(store.url) as here, holdfast.connect(store.url) as there:
        backend: Any = here._current.backend
        bumped = backend._bumped
        seen: list[tuple[int, holdfast.Lease]] = []

        async def late(*arguments: Any) -> int:
            if seen:
                return int(await bumped(*arguments))
            store.kill(number(here, "ward"))
            successor = outside(lambda: there.lock("ward").acquire(timeout=LONG))
            assert successor is not None
            token = int(await bumped(*arguments))
            seen.append((token, successor))
            return token

        monkeypatch.setattr(backend, "_bumped", late)
        assert here.lock("ward").acquire(timeout=1.0) is None
        token, successor = seen[0]
        assert token > successor.fence  # it would have outranked the one that holds
        assert successor.held
        assert successor.release() is True
        with here.lock("ward", timeout=LONG) as lease:
            assert lease.fence > token


@pytest.mark.req("B1", "server restarted without persistence")
@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("kind", [MariaDBServer, PostgresServer])
def test_tokens_increase_over_a_crash_and_the_loss_of_their_source(
    kind: type[MariaDBServer] | type[PostgresServer], strategy: str
) -> None:
    with kind() as server:
        store = Store(server, strategy)
        drop = "DROP TABLE holdfast.holdfast_fence"
        if kind is PostgresServer:
            drop = "DROP SEQUENCE holdfast_fence"
        tokens: list[int] = []

        def take() -> None:
            with (
                holdfast.connect(store.url, request_timeout=LONG) as client,
                client.lock("x") as lease,
            ):
                tokens.append(lease.fence)

        take()
        server.kill()
        server.restart()
        take()
        server.query(drop)
        take()
        assert tokens == sorted(set(tokens))


def test_a_sessions_and_a_transactions_locks_are_the_same(postgres_server: PostgresServer) -> None:
    url = f"{postgres_server.url}?strategy=advisory"
    with holdfast.connect(url) as one, holdfast.connect(f"{url}&scope=transaction") as two:
        with one.lock("x"):
            assert two.lock("x").acquire(blocking=False) is None
            assert two.rwlock("x").read().acquire(timeout=1.5) is None
        with two.lock("x") as lease:
            assert lease.renew() > 0
            assert one.lock("x").acquire(timeout=1.5) is None
        with one.rwlock("x").read(), two.rwlock("x").read():
            assert one.lock("x").acquire(blocking=False) is None


def test_advisory_locks_of_mysql_have_no_token_unless_asked(
    mariadb_server: MariaDBServer,
) -> None:
    with (
        holdfast.connect(f"{mariadb_server.url}?strategy=advisory") as client,
        client.lock("x") as lease,
        pytest.raises(Unsupported),
    ):
        _ = lease.fence


# -- what stands between --------------------------------------------------------------------------


@pytest.mark.req("Galera, PgBouncer")
@pytest.mark.parametrize("strategy", BOTH)
def test_a_pooler_is_refused_unless_it_is_told_of(
    postgres_server: PostgresServer, strategy: str
) -> None:
    with PgBouncer(postgres_server, "transaction") as pooler:
        with (
            holdfast.connect(f"{pooler.url}?strategy={strategy}") as client,
            pytest.raises(Misconfigured, match="pooler"),
        ):
            client.lock("x").acquire()

        async def work() -> None:
            async with aio.connect(f"{pooler.url}?strategy={strategy}") as client:
                await client.lock("x").acquire()

        with pytest.raises(Misconfigured, match="pooler"):
            asyncio.run(work())
    with PgBouncer(postgres_server, "session") as pooler:
        url = f"{pooler.url}?strategy={strategy}"
        with (
            holdfast.connect(url) as client,
            pytest.raises(Misconfigured, match="pooler"),
        ):
            client.lock("x").acquire()
        with holdfast.connect(f"{url}&pooler=session") as one:
            with holdfast.connect(f"{url}&pooler=session") as two, one.lock("x"):
                assert two.lock("x").acquire(blocking=False) is None
            with one.lock("x"):
                pass


@pytest.fixture(scope="module")
def galera() -> Iterator[MariaDBServer]:
    """A cluster of one node is a cluster: what counts is that writes are replicated."""
    install.ensure("galera")
    settings = {
        "wsrep-on": "ON",
        "wsrep-provider": "/usr/lib/galera/libgalera_smm.so",
        "wsrep-cluster-address": "gcomm://",
        "wsrep-provider-options": "gmcast.listen_addr=tcp://127.0.0.1:0",
        "wsrep-node-address": "127.0.0.1",
        "wsrep-sst-method": "rsync",
        "binlog-format": "ROW",
        "innodb-autoinc-lock-mode": "2",
    }
    with MariaDBServer(settings=settings) as server:
        yield server


@pytest.mark.req("Galera, PgBouncer")
@pytest.mark.parametrize("strategy", BOTH)
def test_a_cluster_is_refused_unless_it_is_told_of(galera: MariaDBServer, strategy: str) -> None:
    assert galera.query("SHOW STATUS LIKE 'wsrep_ready'").split() == ["wsrep_ready", "ON"]
    url = f"{galera.url}?strategy={strategy}"
    with holdfast.connect(url) as client, pytest.raises(Misconfigured, match="Galera"):
        client.lock("x").acquire()
    with holdfast.connect(f"{url}&pooler=session") as client, client.lock("x") as lease:
        assert lease.held


@pytest.mark.req("R41")
def test_rows_that_nobody_has_locked_are_swept(server: SqlServer) -> None:
    """Also below who waits for one: it is told that the row is missing, and makes it again."""
    url = f"{server.url}?strategy=for-update&table=swept"
    count = "SELECT count(*) FROM swept_rows"
    if server.url.startswith("mysql"):
        count = "SELECT count(*) FROM holdfast.swept_rows"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        assert here.sweep() == 0  # there are no tables yet
        for name in ("free", "old", "held"):
            with here.lock(name):
                pass
        held = here.lock("held").acquire()
        assert held is not None
        waiter = Acquiring(there.lock("held"))
        until(lambda: waits(there, "held"), "the other one waits")
        assert there.sweep(idle=60) == 0
        assert server.query(count) == "3"
        assert there.sweep() == 2
        assert server.query(count) == "1"
        assert held.held
        assert held.release() is True
        successor = waiter.result()
        assert successor.fence > held.fence
        assert here.lock("held").acquire(blocking=False) is None
        assert successor.release() is True
        # Clients do so by themselves, when it is time.
        backend: Any = here._current.backend
        for name in ("a", "b", "c"):
            with here.lock(name):
                pass
        backend._sweeper._next = 0.0
        drive(backend._tidy())
        assert backend._sweeper._next > 0
        assert server.query(count) == "4"  # they are young
        there.sweep()
        assert server.query(count) == "0"


@pytest.mark.req("R41", "R1")
def test_a_sweep_lets_nobody_in(server: SqlServer) -> None:
    """Rows come and go below those who want them, and still one holds at a time."""
    url = f"{server.url}?strategy=for-update&table=sweeping"
    inside, held = 0, 0
    over = threading.Event()

    def work(client: holdfast.Locks) -> None:
        nonlocal inside, held
        for _ in range(25):
            with client.lock("x", timeout=3 * LONG):
                inside += 1
                assert inside == 1
                held += 1
                inside -= 1

    def sweep() -> None:
        with holdfast.connect(url) as client:
            while not over.is_set():
                client.sweep()

    with holdfast.connect(url) as client:
        with client.lock("x"):
            pass
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(4)]
        sweeper = threading.Thread(target=sweep)
        for thread in (sweeper, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        sweeper.join()
    assert held == 100


def test_timeouts_are_told_as_such(store: Store, connect: Callable[..., holdfast.Locks]) -> None:
    here, there = connect(), connect()
    with here.lock("x"), pytest.raises(AcquireTimeout), there.lock("x", timeout=0.1):
        pytest.fail("nobody granted this")
