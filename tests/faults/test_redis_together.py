"""Several locks by one script on Redis: what it costs, and whom it must not overtake."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest
import redis

import holdfast
from holdfast.core.backend import Together
from holdfast.ports.thread import drive
from holdfast.testing import FaultProxy
from holdfast.types import Busy
from tests.conformance.redis import about_locks
from tests.faults.redis import Waiter, fresh, in_line
from tests.faults.test_redis_found import calls
from tests.servers import RedisServer

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.req("B5", "law 6")
def test_a_free_multi_is_one_script(server: RedisServer) -> None:
    names = [f"n{number}" for number in range(20)]
    with holdfast.connect(fresh(server.url)) as locks:
        multi = locks.multi(*names)
        for _ in range(2):  # the second time their tokens are remembered
            before = calls(server, "eval", "evalsha")
            lease = multi.acquire()
            assert lease
            assert calls(server, "eval", "evalsha") - before <= 2  # EVAL once, if it is not known
            assert len(lease.fences) == 20
            assert lease.release() is True
        assert locks.inspect() == []


@pytest.mark.req("B5", "R8")
def test_a_multi_does_not_overtake_who_waits(server: RedisServer) -> None:
    """The lock is free for a moment only: it is handed over in the same step."""
    url = fresh(server.url)
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        held = other.lock("b").acquire()
        assert held
        first = Waiter(lambda: other.lock("b").acquire(timeout=20))
        in_line(other, 1, "b")
        several = Waiter(lambda: locks.multi("a", "b").acquire(timeout=20))
        in_line(other, 2, "b")
        held.release()
        lease = first.result()
        assert lease.held
        assert locks.multi("a", "b").acquire(blocking=False) is None
        lease.release()
        both = several.result()
        assert both.held
        assert both.release() is True


@pytest.mark.req("B5", "R7")
def test_the_script_takes_all_or_none(server: RedisServer) -> None:
    with holdfast.connect(fresh(server.url)) as locks, locks.lock("c"):
        engine = locks._engine()
        claims = [
            want.claim(f"{n:032x}", {}) for n, want in enumerate(locks.multi("a", "b", "c")._wants)
        ]
        assert isinstance(engine.backend, Together)
        answer = drive(engine.backend.attempt_together(claims, engine.port.now() + 20))
        assert isinstance(answer, Busy)
        assert [info.name for info in locks.inspect()] == ["c"]


@pytest.mark.req("B5", "B1", "law 7")
def test_the_script_goes_on_with_the_tokens(server: RedisServer) -> None:
    """Also if the last one is ahead of the server's clock, which was set back."""
    url = fresh(server.url)
    with holdfast.connect(url) as locks:
        with locks.multi("a", "b") as lease:
            fences = lease.fences
        key = f"{url.partition('prefix=')[2]}:{{b}}"
        ahead = float(fences["b"] + 3_600_000_000)
        with redis.Redis(port=server.port) as client:
            client.set(key, b"f" + struct.pack("<d", ahead), keepttl=True)
        with locks.multi("a", "b") as lease:
            assert lease.fences["a"] > fences["a"]
            assert lease.fences["b"] == ahead + 1
        with locks.lock("b") as single:
            assert single.fence == ahead + 2


@pytest.mark.req("B5", "law 3")
def test_a_late_script_takes_nothing(server: RedisServer) -> None:
    """It arrives after one of its claims was withdrawn."""
    with holdfast.connect(fresh(server.url)) as locks:
        engine = locks._engine()
        backend, port = engine.backend, engine.port
        multi = locks.multi("a", "b", "c")
        claims = [want.claim(f"{n:032x}", {}) for n, want in enumerate(multi._wants)]

        assert isinstance(backend, Together)
        drive(engine.backend.withdraw(claims[1], True, port.now() + 20))
        assert isinstance(drive(backend.attempt_together(claims, port.now() + 20)), Busy)
        assert locks.inspect() == []
        assert multi.acquire(timeout=5), "somebody else's tombstone is in nobody's way"


@pytest.mark.req("B5", "reply lost, command applied", "R32")
def test_the_reply_to_the_script_is_lost(server: RedisServer) -> None:
    """All were taken, and nobody knows: each is found to be ours."""
    with FaultProxy(("127.0.0.1", server.port), framing="resp") as proxy:
        url = fresh(f"redis://127.0.0.1:{proxy.port}")
        with holdfast.connect(url) as locks, holdfast.connect(url) as other:
            with locks.multi("a", "b"):
                pass
            proxy.drop_reply(to=about_locks)
            lease = locks.multi("a", "b").acquire(timeout=20)
            assert lease, "our own locks were in our way"
            assert lease.held
            assert other.multi("b", "c").acquire(blocking=False) is None
            assert lease.release() is True
            with other.multi("a", "b", "c", timeout=20):
                pass


@pytest.mark.req("B5", "R1")
def test_threads_with_multis_and_single_locks(server: RedisServer) -> None:
    """Scripts that take several, scripts that take one, and lines, all at once."""
    inside: dict[str, int] = dict.fromkeys("abc", 0)
    wrong: list[str] = []

    def work(locks: holdfast.Locks, *names: str) -> None:
        for _ in range(30):
            with locks.multi(*names, timeout=60) if len(names) > 1 else locks.lock(names[0]):
                for name in names:
                    inside[name] += 1
                    if inside[name] != 1:
                        wrong.append(name)
                for name in names:
                    inside[name] -= 1

    url = fresh(server.url)
    with holdfast.connect(url) as one, holdfast.connect(url) as two:
        sets = [("a", "b"), ("c", "b"), ("c", "a"), ("a",), ("b",), ("c", "b", "a")]
        threads = [
            threading.Thread(target=work, args=((one, two)[n % 2], *names))
            for n, names in enumerate(sets)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert one.inspect() == []
