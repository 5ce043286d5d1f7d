"""Rows behind the real PgBouncer in transaction mode: fewer servers than clients, and each
transaction may meet another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import aio
from holdfast.backends.sql.table import TableBackend
from tests.faults.redis import in_line, waiting
from tests.faults.test_processes import renewed
from tests.servers import PostgresServer
from tests.servers.pgbouncer import PgBouncer

pytestmark = [pytest.mark.servers, pytest.mark.req("Galera, PgBouncer", "R40")]

SERVERS = 2
LONG = 10.0


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server, "transaction", SERVERS) as pooler:
        yield pooler


@pytest.fixture(params=["row", "optimistic"])
def url(request: pytest.FixtureRequest, pooler: PgBouncer) -> str:
    return f"{pooler.url}?table=pooled&strategy={request.param}&poll=0.05"


def pooled(client: holdfast.Locks) -> bool:
    """Whether its sessions know what stands between."""
    backend = client._current.backend
    assert isinstance(backend, TableBackend)
    return all(session.pooled for session in backend._desk._ordinary._idle)


def test_one_at_a_time_though_nobody_has_a_server_of_its_own(url: str) -> None:
    """More clients at once than servers; tokens increase in the order of the holds."""
    inside = 0
    tokens: list[int] = []

    def work(client: holdfast.Locks) -> None:
        nonlocal inside
        for _ in range(5):
            with client.lock("x", timeout=3 * LONG) as lease:
                inside += 1
                assert inside == 1
                tokens.append(lease.fence)
                inside -= 1

    clients = [holdfast.connect(url, request_timeout=LONG) for _ in range(2 * SERVERS)]
    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(pooled, clients))
    for client in clients:
        client.close()
    assert len(tokens) == 5 * len(clients)
    assert tokens == sorted(set(tokens))


def test_the_same_on_asyncio(url: str) -> None:
    inside = 0

    async def work(client: aio.Locks) -> None:
        nonlocal inside
        for _ in range(5):
            async with client.lock("x", timeout=3 * LONG):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    async def everybody() -> None:
        async with aio.connect(url) as one, aio.connect(url) as two:
            await asyncio.gather(*(work(client) for client in (one, two, one, two)))

    asyncio.run(everybody())


def test_leases_are_kept_and_lost_as_everywhere(pooler: PgBouncer) -> None:
    url = f"{pooler.url}?table=pooled"
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("y", ttl=60, renew=0.3).acquire()
        assert lease is not None
        with waiting(there.lock("y", ttl=60), timeout=LONG) as waiter:
            in_line(here, 1, "y")
            renewed(lease)
            assert there.evict("y") == 1
            successor = waiter.result()
            assert lease.lost.wait(LONG)
            assert successor.fence > lease.fence
            assert successor.release() is True
        with here.rwlock("y").read(), there.rwlock("y").read():
            assert here.lock("y").acquire(blocking=False) is None
        document = here.optimistic("document")
        version = document.commit(document.version())
        assert version is not None
        assert there.optimistic("document").version() == version
