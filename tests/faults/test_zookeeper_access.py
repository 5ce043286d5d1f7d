"""What a user of ZooKeeper must be allowed, one right after the other: docs/backends/zookeeper.md,
"Permissions". (That these suffice: the whole conformance suite is run as such a user.)"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]

import holdfast
from holdfast import Locks, Misconfigured
from tests.conformance.zookeeper import ABOVE, ENCODED, USER, prepare
from tests.servers import ZooKeeperServer
from tests.servers.home import HOST

pytestmark = [pytest.mark.servers, pytest.mark.req("wrong credentials")]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tick=100) as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: ZooKeeperServer) -> Iterator[Any]:
    client = KazooClient(f"{HOST}:{server.port}")
    client.start()
    client.add_auth("digest", "admin:admin")
    yield client
    client.stop()
    client.close()


@pytest.fixture
def base(admin: Any) -> str:
    admin.ensure_path("/")
    return f"{ABOVE}/a{next(_numbers)}"


def connect(server: ZooKeeperServer, path: str) -> Locks:
    url = f"zk://{USER}:{ENCODED}@{HOST}:{server.port}{path}"
    return holdfast.connect(url, request_timeout=5)


def lock(locks: Locks) -> None:
    with locks.lock("x", timeout=10) as lease:
        assert lease.renew() > 0


def rwlock(locks: Locks) -> None:
    with locks.rwlock("r").read():
        pass
    with locks.rwlock("r").write():
        pass


def semaphore(locks: Locks) -> None:
    with locks.semaphore("s", 2, timeout=10), locks.semaphore("s", 2, timeout=10):
        assert locks.semaphore("s", 2).acquire(blocking=False) is None


def cells(locks: Locks) -> None:
    locks.latch("l", 1).count_down()
    assert locks.once("o", ttl=5, compute=lambda: "one").get() == "one"


def evict(locks: Locks) -> None:
    lease = locks.lock("y", timeout=10).acquire()
    assert lease
    assert [info.name for info in locks._inspect("y", exact=True)] == ["y"]
    assert locks.evict("y") == 1
    assert not lease.release()


def listing(locks: Locks) -> None:
    locks.inspect("y")


EVERYTHING = (lock, rwlock, semaphore, cells, evict)


@pytest.mark.parametrize("query", ["", "?acl=private", "?acl=open", "?parents=persistent"])
def test_create_and_read_on_the_path_are_enough(
    query: str, server: ZooKeeperServer, admin: Any, base: str
) -> None:
    prepare(admin, base, create=True, read=True)
    with connect(server, base + query) as locks:
        for use in (*EVERYTHING, listing):
            use(locks)


def test_without_read_only_lists_of_locks_is_refused(
    server: ZooKeeperServer, admin: Any, base: str
) -> None:
    prepare(admin, base, create=True)
    with connect(server, base) as locks:
        for use in EVERYTHING:
            use(locks)
        refused(listing, locks)


def test_without_create_nothing_can_be_taken(
    server: ZooKeeperServer, admin: Any, base: str
) -> None:
    prepare(admin, base, read=True, write=True, delete=True, admin=True)
    with connect(server, base) as locks:
        for use in (lock, rwlock, semaphore, cells):
            refused(use, locks)
        listing(locks)


@pytest.mark.parametrize("below", ["/one", "/one/two"])
def test_a_path_that_is_not_there_needs_create_above_it(
    below: str, server: ZooKeeperServer, admin: Any, base: str
) -> None:
    prepare(admin, base, read=True)
    with connect(server, base + below) as locks:
        refused(lock, locks)
        refused(cells, locks)
    prepare(admin, f"{base}-open", create=True)
    with connect(server, f"{base}-open{below}") as locks:
        for use in (*EVERYTHING, listing):
            use(locks)


@pytest.mark.parametrize("right", ["create", "read"])
def test_a_lock_whose_node_was_prepared_needs_each_of_its_rights(
    right: str, server: ZooKeeperServer, admin: Any, base: str
) -> None:
    prepare(admin, base, read=True)
    everything = {"create": True, "read": True, "delete": True}
    prepare(admin, f"{base}/x", **everything)
    with connect(server, f"{base}?parents=persistent") as locks:
        lock(locks)
    prepare(admin, f"{base}-less", read=True)
    prepare(admin, f"{base}-less/x", **{**everything, right: False})
    with connect(server, f"{base}-less?parents=persistent") as locks:
        refused(lock, locks)


@pytest.mark.parametrize("right", ["create", "read"])
def test_cells_whose_folder_was_prepared_need_these_rights(
    right: str, server: ZooKeeperServer, admin: Any, base: str
) -> None:
    everything = {"create": True, "read": True, "write": True, "delete": True}
    prepare(admin, base)
    prepare(admin, f"{base}/%cells", **everything)
    with connect(server, base) as locks:
        locks.latch("l", 1).count_down()
    prepare(admin, f"{base}-less")
    prepare(admin, f"{base}-less/%cells", **{**everything, right: False})
    with connect(server, f"{base}-less") as locks:
        refused(lambda locks: locks.latch("l", 1).count_down(), locks)


def refused(use: Callable[[Locks], object], locks: Locks) -> None:
    with pytest.raises(Misconfigured, match="have CREATE and READ granted on the path"):
        use(locks)
