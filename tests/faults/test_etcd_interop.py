"""One line for all: holdfast and etcd's own mutex exclude one another, in order (B4)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Lease, Mode, Unsupported
from tests.faults.etcd import Holder, b64, etcdctl
from tests.servers import EtcdServer
from tests.waiting import until

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
    assert locks.lock(name).acquire(timeout=1.5) is None
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


@pytest.mark.req("R60", "B4")
def test_another_client_of_etcd_in_the_same_process(etcd_server: EtcdServer, name: str) -> None:
    """aetcd, which has grpcio, protobuf and its own code generated from etcd's files: both work,
    before and after the other, at the same time, and in a forked child."""
    script = textwrap.dedent(f"""
        import asyncio, os, threading
        import holdfast
        locks = holdfast.connect({etcd_server.url!r})
        with locks.lock({name!r}) as before:
            pass
        import aetcd
        from holdfast import aio

        async def main():
            async with (
                aetcd.Client("127.0.0.1", {etcd_server.port}) as client,
                aio.connect({etcd_server.url!r}) as alocks,
            ):
                lease = await alocks.lock({name!r}, ttl=30).acquire()
                assert lease.fence > before.fence
                waiting = asyncio.create_task(alocks.lock({name!r}).acquire(timeout=20))
                guard = lease.txn_guard()
                for value in range(20):  # the user's own transactions, under our guard
                    done, _ = await client.transaction(
                        compare=[client.transactions.create(guard.key) == guard.create_revision],
                        success=[client.transactions.put(b"data", b"%d" % value)],
                        failure=[],
                    )
                    assert done
                await lease.renew()
                await lease.release()
                done, _ = await client.transaction(
                    compare=[client.transactions.create(guard.key) == guard.create_revision],
                    success=[client.transactions.put(b"data", b"late")],
                    failure=[],
                )
                assert not done
                assert (await client.get(b"data")).value == b"19"
                # Its lock has a format of its own; ours goes on beside it.
                async with client.lock(b"theirs", ttl=30):
                    second = await waiting
                    assert second.held
                    await second.release()

        asyncio.run(main())
        pid = os.fork()
        if pid == 0:
            with locks.lock({name!r}, timeout=20) as own:
                held = own.held
            os._exit(0 if held else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with locks.lock({name!r}, timeout=20):
            print("good")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "good\n", done.stderr
