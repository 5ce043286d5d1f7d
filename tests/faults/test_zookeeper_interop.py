"""zk:// and kazoo's own locks stand in one line: each excludes the other, in both directions."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from tests.faults.zookeeper import LONG, kazoo, nodes
from tests.servers import ZooKeeperServer
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture
def path() -> str:
    return f"/interop-{uuid.uuid4().hex}"


@pytest.fixture
def locks(zookeeper_server: ZooKeeperServer, path: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(f"zk://127.0.0.1:{zookeeper_server.port}{path}") as locks:
        yield locks


@pytest.fixture
def client(zookeeper_server: ZooKeeperServer) -> Iterator[Any]:
    with kazoo(zookeeper_server.port) as client:
        yield client


@pytest.mark.req("R50", "R1")
@pytest.mark.parametrize("kind", ["Lock", "WriteLock", "ReadLock"])
def test_kazoo_is_excluded_by_a_holder(
    locks: holdfast.Locks, client: Any, path: str, kind: str
) -> None:
    other = getattr(client, kind)(f"{path}/x")
    with locks.lock("x"):
        assert not other.acquire(blocking=False)
    assert other.acquire(timeout=LONG)
    other.release()


@pytest.mark.req("R50", "R1")
@pytest.mark.parametrize("kind", ["Lock", "WriteLock", "ReadLock"])
def test_kazoo_excludes_a_writer(locks: holdfast.Locks, client: Any, path: str, kind: str) -> None:
    other = getattr(client, kind)(f"{path}/x", "somebody else")
    assert other.acquire(timeout=LONG)
    assert locks.lock("x").acquire(blocking=False) is None
    with pytest.raises(holdfast.AcquireTimeout, match="somebody else"), locks.lock("x", timeout=0):
        pytest.fail("two holders")
    assert locks.semaphore("x", 3).acquire(blocking=False) is None
    other.release()
    with locks.lock("x", timeout=LONG):
        pass


@pytest.mark.req("R50", "R10")
def test_readers_of_both_share(locks: holdfast.Locks, client: Any, path: str) -> None:
    reader, writer = client.ReadLock(f"{path}/x"), client.WriteLock(f"{path}/x")
    assert reader.acquire(timeout=LONG)
    with locks.rwlock("x").read():
        assert locks.rwlock("x").write().acquire(blocking=False) is None
        reader.release()
        assert not writer.acquire(blocking=False)
    assert writer.acquire(timeout=LONG)
    assert locks.rwlock("x").read().acquire(blocking=False) is None
    writer.release()


@pytest.mark.req("R50", "B5")
def test_kazoo_waits_for_permits(locks: holdfast.Locks, client: Any, path: str) -> None:
    other = client.Lock(f"{path}/x")
    with locks.semaphore("x", 2), locks.semaphore("x", 2):
        assert not other.acquire(blocking=False)
    assert other.acquire(timeout=LONG)
    other.release()


@pytest.mark.req("R50", "R8", "R9")
def test_both_hand_over_to_one_another_in_order(
    locks: holdfast.Locks, client: Any, path: str
) -> None:
    served: list[str] = []

    def theirs(name: str) -> None:
        other = client.Lock(f"{path}/x")
        assert other.acquire(timeout=LONG)
        served.append(name)
        other.release()

    def ours(name: str) -> None:
        with locks.lock("x", timeout=LONG):
            served.append(name)

    turns = [theirs, ours, theirs, ours, ours, theirs]
    threads: list[threading.Thread] = []
    with locks.lock("x"):
        for number, turn in enumerate(turns):
            threads.append(threading.Thread(target=turn, args=(str(number),)))
            threads[-1].start()
            until(lambda: len(nodes(client, f"{path}/x")) == len(threads) + 1, "a place in line")
    for thread in threads:
        thread.join(LONG)
    assert served == [str(number) for number in range(len(turns))]


@pytest.mark.req("R50")
def test_a_foreign_node_counts_as_exclusive(locks: holdfast.Locks, client: Any, path: str) -> None:
    """Go's client calls its nodes like this."""
    guid = uuid.uuid4().hex
    node = client.create(
        f"{path}/x/_c_{guid}-lock-", b"", ephemeral=True, sequence=True, makepath=True
    )
    assert locks.lock("x").acquire(blocking=False) is None
    assert locks.rwlock("x").read().acquire(blocking=False) is None
    client.delete(node)
    with locks.lock("x", timeout=LONG):
        assert nodes(client, f"{path}/x")[0].count("-") == 0  # Go's client splits at dashes


@pytest.mark.req("R50", "R12")
def test_names_are_paths_as_kazoo_writes_them(
    locks: holdfast.Locks, client: Any, path: str
) -> None:
    for name in ("plain", "with space", "ümläut", "锁", "a.b:c,d"):
        with locks.lock(name):
            assert not client.Lock(f"{path}/{name}").acquire(blocking=False)
    with client.Lock(f"{path}/theirs", "web-7"):
        (info,) = [info for info in locks.inspect() if info.name == "theirs"]
        assert info.holders[0].info == {"label": "web-7"}
        assert locks.evict("theirs") == 1
