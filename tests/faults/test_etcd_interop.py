"""One line for all: holdfast and etcd's own mutex exclude one another, in order (B4)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Lease, Mode, Unsupported
from tests.faults.etcd import Holder, b64, etcdctl, until
from tests.servers import EtcdServer

pytestmark = pytest.mark.servers


@pytest.fixture
def name() -> str:
    return f"lock-{uuid.uuid4()}"


@pytest.fixture
def locks(etcd_server: EtcdServer) -> Iterator[holdfast.Locks]:
    with holdfast.connect(etcd_server.url) as locks:
        yield locks


@pytest.fixture
def at(etcd_server: EtcdServer) -> str:
    return f"127.0.0.1:{etcd_server.port}"


def waiters(locks: holdfast.Locks, name: str) -> int:
    return sum(len(info.waiters) for info in locks.inspect(name))


class Waiting(threading.Thread):
    """Somebody who waits for a lock."""

    def __init__(self, lock: holdfast.Lock) -> None:
        super().__init__()
        self._lock = lock
        self._lease: Lease | None = None
        self.start()

    @property
    def lease(self) -> Lease:
        self.join()
        assert self._lease is not None
        return self._lease

    def run(self) -> None:
        self._lease = self._lock.acquire(timeout=15)


@pytest.mark.req("B4", "R60")
def test_etcdctl_holds_and_we_wait(locks: holdfast.Locks, at: str, name: str) -> None:
    other = Holder(at, name)
    assert other.granted().startswith(f"{name}/")
    assert locks.lock(name).acquire(blocking=False) is None
    assert locks.lock(name).acquire(timeout=0.2) is None
    assert locks.rwlock(name).read().acquire(blocking=False) is None
    assert locks.semaphore(name, 5).acquire(blocking=False) is None
    (info,) = locks.inspect(name)
    assert info.name == name
    assert [holder.mode for holder in info.holders] == [Mode.EXCLUSIVE]
    waiting = Waiting(locks.lock(name))
    until(lambda: waiters(locks, name) == 1, "we wait")
    other.release()
    assert waiting.lease.held
    waiting.lease.release()


@pytest.mark.req("B4", "R60")
def test_we_hold_and_etcdctl_waits(locks: holdfast.Locks, at: str, name: str) -> None:
    for lock in (locks.lock(name), locks.rwlock(name).read()):
        lease = lock.acquire()
        assert lease is not None
        other = Holder(at, name)
        until(lambda: waiters(locks, name) == 1, "etcdctl waits")
        assert other.waits
        lease.release()
        assert other.granted().startswith(f"{name}/")
        assert locks.lock(name).acquire(blocking=False) is None
        other.release()
    permit = locks.semaphore(name, 3).acquire()
    assert permit is not None
    other = Holder(at, name)
    until(lambda: waiters(locks, name) == 1, "etcdctl waits")
    permit.release()
    assert other.granted()
    other.release()


@pytest.mark.req("B4", "R8", "R60")
def test_all_stand_in_one_line(locks: holdfast.Locks, at: str, name: str) -> None:
    lease = locks.lock(name).acquire()
    assert lease is not None
    second = Holder(at, name)
    until(lambda: waiters(locks, name) == 1, "etcdctl waits")
    third = Waiting(locks.lock(name))
    until(lambda: waiters(locks, name) == 2, "we wait behind it")
    fourth = Holder(at, name)
    until(lambda: waiters(locks, name) == 3, "etcdctl waits behind us")
    lease.release()
    assert second.granted()
    assert third.is_alive()
    second.release()
    assert third.lease.held
    assert fourth.waits
    third.lease.release()
    assert fourth.granted()
    fourth.release()


@pytest.mark.req("B4", "waiter withdrawn")
def test_who_leaves_from_the_middle_wakes_nobody_too_early(
    locks: holdfast.Locks, at: str, name: str
) -> None:
    holder = Holder(at, name)
    assert holder.granted()
    middle = Holder(at, name)
    until(lambda: waiters(locks, name) == 1, "etcdctl waits")
    last = Waiting(locks.lock(name))
    until(lambda: waiters(locks, name) == 2, "we wait")
    middle.release()
    until(lambda: waiters(locks, name) == 1, "etcdctl has left")
    assert last.is_alive()
    holder.release()
    assert last.lease.held
    last.lease.release()


@pytest.mark.req("B4", "names")
def test_a_name_with_a_slash(etcd_server: EtcdServer, at: str, name: str) -> None:
    """By default `a` and `a/b` are two locks; with name=exact, as etcdctl takes them."""
    deep = f"{name}/b"
    with (
        holdfast.connect(etcd_server.url) as locks,
        holdfast.connect(etcd_server.url, name="exact") as exact,
        holdfast.connect(f"{etcd_server.url}?name=exact") as again,
        locks.lock(deep),
    ):
        assert not locks.lock(name).locked()
        other = Holder(at, deep)
        assert other.granted()
        assert exact.lock(deep).acquire(blocking=False) is None
        assert again.lock(deep).acquire(blocking=False) is None
        other.release()
        with exact.lock(deep):
            other = Holder(at, deep)
            until(lambda: waiters(exact, deep) == 1, "etcdctl waits")
        assert other.granted()
        other.release()


@pytest.mark.req("names")
def test_a_prefix_keeps_to_itself(etcd_server: EtcdServer, at: str, name: str) -> None:
    with (
        holdfast.connect(f"{etcd_server.url}/{name}") as mine,
        holdfast.connect(f"{etcd_server.url}/{name}/") as too,
        holdfast.connect(etcd_server.url) as others,
        mine.lock("x"),
    ):
        assert too.lock("x").acquire(blocking=False) is None
        assert not others.lock("x").locked()
        assert [info.name for info in mine.inspect()] == ["x"]
        other = Holder(at, f"{name}/x")
        until(lambda: len(mine.inspect()[0].waiters) == 1, "etcdctl waits under the prefix")
        other.release()


@pytest.mark.req("B1", "R60")
def test_a_transaction_of_the_users_own(
    etcd_server: EtcdServer, locks: holdfast.Locks, at: str, name: str
) -> None:
    """It takes effect while the lease holds, and not a moment longer."""

    def put(guard: holdfast.TxnGuard, value: bytes) -> bool:
        answer = etcd_server.api(
            "/v3/kv/txn",
            {
                "compare": [
                    {
                        "key": b64(guard.key),
                        "target": "CREATE",
                        "create_revision": str(guard.create_revision),
                    }
                ],
                "success": [{"requestPut": {"key": b64(b"data-%b" % name.encode()),
                                            "value": b64(value)}}],
            },
        )  # fmt: skip
        return bool(answer.get("succeeded", False))

    lease = locks.lock(name).acquire()
    assert lease is not None
    guard = lease.txn_guard()
    assert guard.create_revision == lease.fence
    assert put(guard, b"one")
    locks.evict(name)
    assert not put(guard, b"two")
    with pytest.raises(holdfast.LeaseLost):
        lease.renew()
    with locks.lock(name) as later:
        assert not put(guard, b"three")
        assert put(later.txn_guard(), b"four")
    shown = etcdctl(at, "get", f"data-{name}", "-w", "json").communicate()[0]
    assert b64(b"four") in json.dumps(json.loads(shown))
    with (
        holdfast.connect("memory://") as elsewhere,
        elsewhere.lock("x") as lease,
        pytest.raises(Unsupported, match="etcd"),
    ):
        lease.txn_guard()


@pytest.mark.req("B7")
def test_the_command_line_works_on_it(
    etcd_server: EtcdServer, locks: holdfast.Locks, name: str
) -> None:
    def cli(*args: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "holdfast.cli", "--url", etcd_server.url, *args],
            capture_output=True, text=True, timeout=30, check=True,
        ).stdout  # fmt: skip

    lease = locks.lock(name, metadata={"job": "import"}).acquire()
    assert lease is not None
    assert name in cli("ls", name)
    shown = cli("show", name)
    assert "import" in shown
    assert str(lease.fence) in shown
    cli("release", name, "--force")
    assert not locks.lock(name).locked()
    assert lease.release() is False
    assert cli("run", name, "--", "echo", "alone") == "alone\n"
    assert not locks.lock(name).locked()
