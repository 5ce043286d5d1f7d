"""What goes wrong in other libraries for Redis, each as it was reproduced there, done with ours."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Unavailable, aio
from holdfast.ports.clock import now
from holdfast.testing import FaultProxy
from tests.conformance.redis import about_locks
from tests.faults.redis import fresh
from tests.faults.test_processes import renewed
from tests.servers import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", server.port), framing="resp") as proxy:
        yield proxy


@pytest.mark.req("reply lost, command applied", "R32", "R2")
def test_redis_py_a_lost_reply_is_a_deadlock_for_ever(
    server: RedisServer, proxy: FaultProxy
) -> None:
    """redis-py: acquire() said False, while the key held our own token without an expiry."""
    with holdfast.connect(fresh(f"redis://127.0.0.1:{proxy.port}")) as locks:
        with locks.lock("warm up"):
            pass
        proxy.drop_reply(to=about_locks)
        lease = locks.lock("x").acquire(timeout=20)
        assert lease, "our own lock was in our way"
        keys = server.call("KEYS", "*{x}*")
        assert isinstance(keys, list)
        assert all(int(str(server.call("PTTL", str(key)))) > 0 for key in keys)
        assert lease.release() is True


@pytest.mark.req("server hangs", "R7")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_redis_py_a_time_limit_of_1_s_took_59_s(proxy: FaultProxy, port: str) -> None:
    proxy.pause_accept()  # the kernel accepts, and nobody ever answers
    url = fresh(f"redis://127.0.0.1:{proxy.port}")

    async def main() -> float:
        async with aio.connect(url) as locks:
            begun = time.monotonic()
            with pytest.raises(Unavailable):
                await locks.lock("x").acquire(timeout=1)
            return time.monotonic() - begun

    if port == "aio":
        took = asyncio.run(main())
    else:
        with holdfast.connect(url) as locks:
            begun = time.monotonic()
            with pytest.raises(Unavailable):
                locks.lock("x").acquire(timeout=1)
            took = time.monotonic() - begun
    assert 0.9 < took < 8


@pytest.mark.req("R7")
def test_redis_py_a_time_limit_shorter_than_the_poll_gave_up_at_once(server: RedisServer) -> None:
    """redis-py: blocking_timeout=0.9 with sleep=1 did not wait at all."""
    with holdfast.connect(fresh(server.url)) as locks:
        lease = locks.lock("x").acquire()
        assert lease
        threading.Timer(0.3, lease.release).start()
        begun = time.monotonic()
        second = locks.lock("x").acquire(timeout=9)
        assert second
        assert 0.2 < time.monotonic() - begun < 9
        second.release()


@pytest.mark.req("R3", "B3")
def test_redis_py_two_tasks_share_a_lock_and_release_each_others(server: RedisServer) -> None:
    async def main() -> None:
        async with aio.connect(fresh(server.url)) as locks:
            lock = locks.lock("x")
            inside = 0

            async def work() -> None:
                nonlocal inside
                for _ in range(20):
                    async with lock as lease:
                        inside += 1
                        assert inside == 1
                        await asyncio.sleep(0.0005)
                        assert inside == 1
                        assert lease.held
                        inside -= 1

            await asyncio.gather(*(work() for _ in range(5)))
            # And who does not hold it cannot release it, through the same object or another.
            held = await lock.acquire()
            assert held

            async def stranger() -> None:
                with pytest.raises(holdfast.NotHeld):
                    await lock.release()

            await asyncio.create_task(stranger())
            assert held.held
            await held.release()

    asyncio.run(main())


@pytest.mark.req("asyncio cancellation at any await", "law 4")
def test_redis_py_cancelled_acquires_leave_the_key(server: RedisServer) -> None:
    """redis.asyncio left it 11 times in 200."""

    async def main() -> None:
        dice = random.Random(7)
        async with aio.connect(fresh(server.url)) as locks:
            async with locks.lock("warm up"):
                pass
            for n in range(200):
                task = asyncio.create_task(locks.lock(f"{n % 5}").acquire(timeout=5))
                await asyncio.sleep(dice.random() * 0.001)
                task.cancel()
                try:
                    lease = await task
                except asyncio.CancelledError:
                    continue
                assert lease
                await lease.release()
            deadline = time.monotonic() + 25
            while await locks.inspect():
                assert time.monotonic() < deadline, "something was left"
                await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.req("asyncio cancellation at any await", "law 4")
def test_redis_py_a_cancelled_release_leaves_the_key(server: RedisServer) -> None:
    async def main() -> None:
        dice = random.Random(7)
        async with aio.connect(fresh(server.url)) as locks:
            for n in range(100):
                lease = await locks.lock(f"{n % 5}").acquire(timeout=5)
                assert lease
                task = asyncio.create_task(lease.release())
                await asyncio.sleep(dice.random() * 0.0005)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            deadline = time.monotonic() + 25
            while await locks.inspect():
                assert time.monotonic() < deadline, "something was left"
                await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.req("R7")
def test_python_redis_lock_a_time_limit_of_half_a_second_becomes_none(
    server: RedisServer,
) -> None:
    """python-redis-lock: timeout=0.5 was made an integer, 0, which BLPOP takes for ever."""
    with holdfast.connect(fresh(server.url)) as locks:
        lease = locks.lock("x").acquire()
        assert lease
        begun = time.monotonic()
        assert locks.lock("x").acquire(timeout=0.5) is None
        assert 0.5 <= time.monotonic() - begun < 8
        begun = now()
        short = locks.lock("y", ttl=0.5, renew=False).acquire()
        assert short
        left = short.remaining()
        assert left <= 0.5
        assert left + now() - begun > 0.4
        lease.release()
        short.release()


@pytest.mark.req("renewal thread dies", "R21", "B2")
def test_python_redis_lock_renewal_that_dies_is_silent(
    server: RedisServer, proxy: FaultProxy
) -> None:
    """python-redis-lock: one error ended the renewing thread, and nobody was told. Here renewal
    goes on as soon as it can; and if it cannot, the holder is told in time."""
    with holdfast.connect(fresh(f"redis://127.0.0.1:{proxy.port}")) as locks:
        lease = locks.lock("x", ttl=6, renew=0.3).acquire()
        assert lease
        threads = threading.active_count()
        fault = proxy.sever()
        time.sleep(0.7)
        fault.undo()
        renewed(lease)
        lease.check()
        proxy.sever()
        assert lease.lost.wait(20) is True
        with pytest.raises(holdfast.LeaseLost):
            lease.check()
        proxy.heal()
        for n in range(100):
            with locks.lock(f"{n}"):
                pass
        assert threading.active_count() <= threads  # one keeper, however many locks


@pytest.mark.req("R20", "R30")
def test_python_redis_lock_a_thread_for_each_lock(server: RedisServer) -> None:
    with holdfast.connect(fresh(server.url)) as locks:
        before = threading.active_count()
        leases = [locks.lock(f"{n}", ttl=30).acquire() for n in range(100)]
        assert threading.active_count() <= before + 1
        for lease in leases:
            assert lease
            lease.release()
        until(lambda: not locks.inspect(), "nothing is left")
