"""Bugs that a hostile review found in the etcd backend, on real members.

Over 400 lines: a list of cases, each read by itself, that share one server.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.etcd import EtcdBackend, answers
from holdfast.backends.url import parse
from holdfast.ports.thread import ThreadPort, drive
from holdfast.testing import FaultProxy
from holdfast.types import Cell, CellConflict, Claim, Grant, Lost, Released, Unknown
from tests.faults.etcd import PATIENCE, b64, etcdctl, in_threads
from tests.servers import EtcdServer
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
def proxy(server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy:
        yield proxy


def names(locks: holdfast.Locks, prefix: str) -> list[str]:
    return [info.name for info in locks.inspect(prefix)]


class Told:
    def lost(self, owner: str, reason: str) -> None: ...

    def certain_until(self, owner: str, moment: float) -> None: ...


# -- ghosts ---------------------------------------------------------------------------------------


@pytest.mark.req("law 3", "law 4", "etcd compaction, leader change, lease revoked")
def test_what_was_refused_for_want_of_space_is_not_there() -> None:
    """etcd looks whether there is space, then does it, and looks again: it may say that there is
    none although the key was put. On a lease that is kept alive it would be there for ever."""
    with EtcdServer(settings={"quota-backend-bytes": str(4 << 20)}) as server:
        full = threading.Event()

        def fill(number: int) -> None:
            for turn in range(1000):
                key, value = b64(b"~%d-%d" % (number, turn)), b64(b"x" * 60_000)
                try:
                    server.api("/v3/kv/put", {"key": key, "value": value})
                except Exception:
                    full.set()
                    return

        with holdfast.connect(server.url, request_timeout=10) as locks:
            kept = locks.lock("kept", ttl=60).acquire()
            assert kept is not None
            refused: list[str] = []

            def take(number: int) -> None:
                for turn in range(10_000):
                    try:
                        lease = locks.lock(f"{number}-{turn}", ttl=60).acquire(blocking=False)
                    except Unavailable as error:
                        refused.append(str(error))
                        return
                    assert lease is not None
                    lease.release()

            for thread in [*in_threads(4, fill), *in_threads(12, take)]:
                thread.join()
            assert full.is_set()
            assert len(refused) == 12
            assert "space" in refused[0]
            until(lambda: names(locks, "") == ["kept"], "nothing is left of what was refused")


@pytest.mark.req("law 3", "law 4", "KeyboardInterrupt at any line")
@pytest.mark.parametrize("permits", [False, True])
def test_an_interrupt_while_the_answer_is_read(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch, permits: bool
) -> None:
    """The key is there by then, on a lease that others keep alive."""
    read = answers.TxnAnswer.read
    armed = [0]

    def struck(data: bytes) -> Any:
        answer = read(data)
        if armed[0] and threading.current_thread() is threading.main_thread():
            armed[0] -= 1
            if not armed[0]:
                raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(answers.TxnAnswer, "read", struck)
    with holdfast.connect(server.url) as locks, locks.lock("struck: kept", ttl=60):
        lock: Any
        other = locks.semaphore("struck", 3, ttl=60).acquire() if permits else None
        if other is not None:  # who comes now asks a second time
            lock, armed[0] = locks.semaphore("struck", 3, ttl=60), 2
        else:
            lock, armed[0] = locks.lock("struck", ttl=60), 1
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(blocking=False)
        if other is not None:
            other.release()
        until(lambda: "struck" not in names(locks, "struck"), "it is withdrawn")


@pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn", "eviction")
def test_an_attempt_that_arrives_after_the_loss(server: EtcdServer, proxy: FaultProxy) -> None:
    """The first request is late; the second took the lock; the key is deleted by hand and the
    holder told. Then the first one arrives, and nobody is there to hold what it puts."""

    backend = EtcdBackend.from_url(parse(f"etcd://{proxy.host}:{proxy.port}/late"))
    port = ThreadPort()
    backend.open(port, Told())
    kept = drive(backend.attempt(Claim("kept", "1" * 32, ttl=60), True, port.now() + 5))
    assert isinstance(kept, Grant)
    claim = Claim("x", "2" * 32, ttl=60)
    held = proxy.hold("to_server", matching=b"/etcdserverpb.KV/Txn")
    assert isinstance(drive(backend.attempt(claim, True, port.now() + 2)), Unknown)
    proxy.wait_for_held()
    # Those of other connections pass by.
    direct = EtcdBackend.from_url(parse(f"{server.url}/late"))
    transport, site = backend._channel._transport, backend._channel._site
    backend._channel._site = direct._site
    grant = drive(backend.attempt(claim, True, port.now() + 5))
    assert isinstance(grant, Grant)
    server.api("/v3/kv/deleterange", {"key": b64(b"late/x/"), "range_end": b64(b"late/x0")})
    (renewed,) = drive(backend.renew([grant], port.now() + 5))
    assert isinstance(renewed, Lost)
    # What the core does when a lease is lost of which some request was not answered.
    assert isinstance(drive(backend.withdraw(claim, True, port.now() + 5)), Released)
    held.undo()
    proxy.release_held()
    time.sleep(0.5)
    found = server.api("/v3/kv/range", {"key": b64(b"late/x/"), "range_end": b64(b"late/x0")})
    assert not found.get("kvs")
    backend._channel._site, backend._channel._transport = site, transport
    drive(backend.close())


# -- keeping --------------------------------------------------------------------------------------


@pytest.mark.req("R21", "eviction", "law 5")
@pytest.mark.parametrize("locks", [8, 250])
def test_a_crowd_hears_of_an_eviction_though_others_keep_its_lease_alive(
    server: EtcdServer, locks: int
) -> None:
    """Who had eight locks and took others now and then was never told: the keep-alive that goes
    with an attempt passed for a look at the keys."""
    backend = EtcdBackend.from_url(parse(server.url))
    port, ahead = ThreadPort(), [0.0]
    now = port.now
    port.now = lambda: now() + ahead[0]
    backend.open(port, Told())

    def take(name: str, fixed: bool = False) -> Grant:
        claim = Claim(name, secrets.token_hex(16), ttl=60, fixed=fixed)
        grant = drive(backend.attempt(claim, True, port.now() + 5))
        assert isinstance(grant, Grant)
        return grant

    crowd = [take(f"crowd{n}") for n in range(locks)]
    assert drive(backend.evict("crowd3", port.now() + 5)) == 1
    ahead[0] = 20.0
    take("another", fixed=True)
    results = drive(backend.renew(crowd, port.now() + 5))
    assert [type(one) for one in results].count(Lost) == 1
    assert isinstance(results[3], Lost)
    # And all of them, each by its own name.
    for n in range(locks):
        drive(backend.evict(f"crowd{n}", port.now() + 5))
    ahead[0] = 40.0
    take("yet another", fixed=True)
    results = drive(backend.renew(crowd, port.now() + 5))
    assert {type(one) for one in results} == {Lost}
    drive(backend.close())


# -- what is left, and what others left ----------------------------------------------------------


def _leases(server: EtcdServer) -> int:
    return len(server.api("/v3/lease/leases").get("leases", []))


@pytest.mark.req("B5", "law 4")
def test_a_value_that_was_replaced_leaves_no_lease() -> None:
    """Each count of a latch left one behind for as long as the latch is kept: a week."""
    with EtcdServer() as server, holdfast.connect(server.url) as locks:
        latch = locks.latch("latch", 100)
        for _ in range(5):
            latch.count_down()
        assert _leases(server) == 1
        mine = EtcdBackend.from_url(parse(server.url))
        port = ThreadPort()
        mine.open(port, Told())

        def write(value: bytes | None, expect: int | None, fence: int | None) -> Any:
            limit = port.now() + 5
            return drive(
                mine.cell_write("c", value, expect=expect, fence=fence, ttl=99, deadline=limit)
            )

        assert isinstance(write(b"1", 0, 7), Cell)
        assert isinstance(write(b"2", 0, 7), CellConflict)  # another version
        assert isinstance(write(b"2", None, 6), CellConflict)  # an older fence
        assert _leases(server) == 2
        assert isinstance(write(b"2", None, 8), Cell)
        assert _leases(server) == 2
        found = drive(mine.cell_read("c", port.now() + 5))
        assert found is not None
        assert found.value == b"2"
        assert isinstance(write(None, None, 9), Cell)
        assert _leases(server) == 1
        drive(mine.close())


@pytest.mark.req("R60")
@pytest.mark.parametrize(
    "value",
    [b"[" * 100_000, b'{"at":1' + b"0" * 400 + b',"info":{}}', b'{"at":-1e999,"info":{}}', b"\xff"],
)
def test_values_of_others_under_a_name_of_ours(server: EtcdServer, value: bytes) -> None:
    """Who wanted the lock got Python's own errors; or `ls --json` said Infinity."""
    key = {"key": b64(b"others/hx-" + b"0" * 32)}
    server.api("/v3/kv/put", {**key, "value": b64(value)})
    with holdfast.connect(server.url) as locks:
        assert locks.lock("others").acquire(blocking=False) is None
        assert locks.lock("others").acquire(timeout=1.5) is None
        (info,) = locks.inspect("others")
        assert info.holders[0].since == 0.0
    server.api("/v3/kv/deleterange", key)


@pytest.mark.req("R60")
def test_keys_of_others_with_more_digits_than_python_reads(server: EtcdServer) -> None:
    key = {"key": b64(b"digits/hp" + b"9" * 5000 + b".1-" + b"0" * 32)}
    server.api("/v3/kv/put", {**key, "value": b64(b"{}")})
    with holdfast.connect(server.url) as locks:
        assert locks.semaphore("digits", 3).acquire(blocking=False) is None
        assert locks.lock("digits").locked()
        assert locks.evict("digits") == 1
        with locks.semaphore("digits", 2**31 - 1):  # as many as there can be
            assert names(locks, "digits") == ["digits"]


@pytest.mark.req("B1")
def test_more_than_etcd_takes_at_once_is_no_outage(server: EtcdServer) -> None:
    """It was `Unavailable`, and there was talk of compaction."""
    with holdfast.connect(server.url) as locks, locks.lock("much", ttl=60) as lease:
        for put in (
            {f"k{n}": b"" for n in range(200)},
            *({"k": b"x" * n} for n in (1 << 21, 3 << 20)),
        ):
            with pytest.raises(Misconfigured, match="more than etcd takes"):
                lease.transact(put=put)
        assert lease.transact(put={"k": b""})


# -- waiting --------------------------------------------------------------------------------------


@pytest.mark.req("R9")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_the_loop_that_watches_breaks(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch, port: str, caplog: Any
) -> None:
    """Whatever it was: who waits is served all the same, and soon."""
    read = answers.WatchAnswer.read
    left = [1]

    def broken(data: bytes) -> Any:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("something unforeseen")
        return read(data)

    monkeypatch.setattr(answers.WatchAnswer, "read", broken)

    async def main() -> None:
        async with aio.connect(server.url) as locks:
            lease = await locks.lock("broken", ttl=60).acquire()
            assert lease is not None
            waiting = asyncio.create_task(locks.lock("broken", ttl=60).acquire(timeout=40))
            while left[0]:
                await asyncio.sleep(0.01)
            await lease.release()
            second = await asyncio.wait_for(waiting, 15)
            assert second is not None
            await second.release()

    if port == "aio":
        asyncio.run(main())
    else:
        with holdfast.connect(server.url) as locks:
            lease = locks.lock("broken", ttl=60).acquire()
            assert lease is not None
            served: list[float] = []

            def wait(_: int) -> None:
                with locks.lock("broken", ttl=60, timeout=40):
                    served.append(time.monotonic())

            (thread,) = in_threads(1, wait)
            until(lambda: not left[0], "it broke")
            begun = time.monotonic()
            lease.release()
            thread.join()
            assert served
            assert served[0] - begun < 15  # not the next heartbeat, after 20 s
    assert "unforeseen" in caplog.text


def _ctl(server: EtcdServer, *args: str) -> None:
    done = etcdctl(f"127.0.0.1:{server.port}", *args)
    said, _ = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, said


def _restore(server: EtcdServer, copy: Path) -> None:
    """As an operator would."""
    server.terminate()
    shutil.rmtree(server.data)
    _ctl(
        server, "snapshot", "restore", str(copy), f"--data-dir={server.data}",
        f"--name={server.name}", f"--initial-cluster={server.name}={server.peer_url}",
        f"--initial-advertise-peer-urls={server.peer_url}",
    )  # fmt: skip
    server.launch()
    server.wait_ready()


@pytest.mark.req("R9", "law 2")
def test_a_store_that_went_back_in_time(tmp_path: Path) -> None:
    """Restored from a copy that has the lease of who waits, but neither its key nor the holder's.
    It watched from a revision that was yet to come, or for the end of what had never been."""
    with (
        EtcdServer() as server,
        FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy,
        holdfast.connect(server.url) as others,
        holdfast.connect(f"etcd://{proxy.host}:{proxy.port}", request_timeout=20) as locks,
    ):
        kept = locks.lock("kept", ttl=60).acquire()
        others.latch("latch", 2).count_down()
        _ctl(server, "snapshot", "save", str(tmp_path / "copy"))
        held = [others.lock("lock", ttl=60).acquire(), others.semaphore("permits", 1).acquire()]
        for _ in range(20):
            with others.lock("further", ttl=60):
                pass
        served: set[str] = set()

        def wait(number: int) -> None:
            match number:
                case 0:
                    with locks.lock("lock", ttl=60, timeout=PATIENCE):
                        served.add("lock")
                case 1:
                    with locks.semaphore("permits", 1, ttl=60, timeout=PATIENCE):
                        served.add("permits")
                case _:
                    if locks.latch("latch", 2).wait(timeout=PATIENCE):
                        served.add("latch")

        threads = in_threads(3, wait)
        backend: Any = locks._engine().backend
        until(lambda: len(backend._hub._watches) == 3, "all watch")
        until(lambda: all(one.begun for one in _prompt(backend)), "and etcd knows")
        with proxy.hold(), proxy.pause_accept():  # they do not see that it is away
            _restore(server, tmp_path / "copy")
        with holdfast.connect(server.url) as after:
            after.latch("latch", 2).count_down()
            for thread in threads:
                thread.join()
        assert served == {"lock", "permits", "latch"}
        assert kept is not None
        assert all(held)


def _prompt(backend: Any) -> list[Any]:
    return [one for one in list(backend._hub._watches.values()) if one.prompt]


@pytest.mark.req("B3", "law 4")
def test_closing_while_many_wait_leaves_no_thread(server: EtcdServer) -> None:
    """What they had to say on the stream covered up that it was told to end."""
    for turn in range(10):
        _close_while_ten_wait(server, f"closing {turn}")


def _close_while_ten_wait(server: EtcdServer, name: str) -> None:
    locks = holdfast.connect(server.url)
    lease = locks.lock(name, ttl=60).acquire()
    assert lease is not None

    def wait(_: int) -> None:
        with pytest.raises(holdfast.HoldfastError):
            locks.lock(name, ttl=60).acquire(timeout=20)

    threads = in_threads(10, wait)
    until(lambda: len(locks.inspect(name)[0].waiters) == 10, "all wait")
    begun = time.monotonic()
    locks.close()
    assert time.monotonic() - begun < 10
    for thread in threads:
        thread.join()
    assert not [one for one in threading.enumerate() if "etcd-watch" in one.name]
