"""`?dialect=plain` beside redis-py's own Lock, and beside the format of redsync."""

from __future__ import annotations

import asyncio
import base64
import secrets
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.exceptions import LockNotOwnedError

import holdfast
from holdfast import aio
from tests.waiting import until

pytestmark = pytest.mark.servers
Url = Callable[[str], str]


@pytest.fixture
def ours(url: Url) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url("plain")) as locks:
        yield locks


@pytest.mark.req("R30", "B4", "R1")
def test_redis_py_is_excluded(ours: holdfast.Locks, theirs: redis.Redis, name: str) -> None:
    with ours.lock(name) as lease:
        other = theirs.lock(name, timeout=10)
        assert other.acquire(blocking=False) is False
        assert other.acquire(blocking_timeout=0.25) is False
        assert other.locked()
        assert lease.held
    assert other.acquire(blocking=False) is True
    other.release()


@pytest.mark.req("R30", "B4", "R1")
def test_redis_py_excludes(ours: holdfast.Locks, theirs: redis.Redis, name: str) -> None:
    with theirs.lock(name, timeout=10):
        assert ours.lock(name).acquire(blocking=False) is None
        assert ours.lock(name).acquire(timeout=1.5) is None
        assert ours.lock(name).locked()
    lease = ours.lock(name).acquire(blocking=False)
    assert lease is not None
    lease.release()


@pytest.mark.req("R30", "B4", "R2")
def test_a_lock_of_redis_py_without_an_end_excludes(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    """Its default is no timeout at all."""
    other = theirs.lock(name)
    assert other.acquire()
    assert ours.lock(name).acquire(timeout=1.5) is None
    (info,) = ours.inspect(name)
    assert info.holders[0].remaining is None
    other.release()
    with ours.lock(name, timeout=1):
        assert theirs.pttl(name) > 0


@pytest.mark.req("R30", "B4")
def test_what_is_in_the_key_is_what_redis_py_would_write(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    with ours.lock(name, ttl=20):
        assert theirs.type(name) == "string"
        token = str(theirs.get(name))
        assert len(token) == 32
        assert int(token, 16)
        assert 10_000 < int(theirs.pttl(name)) <= 20_000
    assert theirs.get(name) is None


@pytest.mark.req("R3", "B4")
def test_neither_releases_or_extends_the_others(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    """Each believes to hold, because its own time ran out without its knowing."""
    stale = theirs.lock(name, timeout=10)
    assert stale.acquire()
    theirs.delete(name)
    lease = ours.lock(name).acquire(timeout=1)
    assert lease is not None
    with pytest.raises(LockNotOwnedError):
        stale.extend(10)
    with pytest.raises(LockNotOwnedError):
        stale.release()
    lease.renew()
    theirs.delete(name)
    other = theirs.lock(name, timeout=10)
    assert other.acquire(blocking=False)
    with pytest.raises(holdfast.LeaseLost):
        lease.renew()
    assert lease.release() is False
    assert other.owned()
    other.extend(10)
    other.release()


@pytest.mark.req("R6", "R20", "B4")
def test_renewal_and_expiry_are_seen_by_redis_py(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    lease = ours.lock(name, ttl=5, renew=0.3).acquire()
    assert lease is not None
    other = theirs.lock(name, timeout=60, sleep=0.02)
    assert other.acquire(blocking_timeout=6) is False, "it was not renewed"
    lease.release()
    fixed = ours.lock(name, ttl=0.3, renew=False).acquire()
    assert fixed is not None
    assert other.acquire(blocking_timeout=20) is True
    assert fixed.release() is False
    assert other.owned()
    other.release()


@pytest.mark.req("R6", "R7", "B4")
def test_we_have_it_when_theirs_expires(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    """It is looked at then, and not at the next heartbeat."""
    begun = time.monotonic()
    assert theirs.lock(name, timeout=0.4).acquire()
    with ours.lock(name, timeout=20):
        assert 0.3 < time.monotonic() - begun < 15


@pytest.mark.req("R6", "B4")
def test_their_extension_is_respected(ours: holdfast.Locks, theirs: redis.Redis, name: str) -> None:
    other = theirs.lock(name, timeout=4)
    assert other.acquire()
    turn = ours.lock(name)
    answers: list[holdfast.Lease | None] = []
    waiter = threading.Thread(target=lambda: answers.append(turn.acquire(timeout=28)))
    waiter.start()
    other.extend(60)
    waiter.join(5)
    assert waiter.is_alive()
    begun = time.monotonic()
    other.release()
    waiter.join(15)
    assert time.monotonic() - begun < 15, "their release is found by looking, soon"
    assert answers[0] is not None
    answers[0].release()


@pytest.mark.req("R9", "B4")
def test_looking_at_their_lock_is_bounded(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    """Many threads of ours wait for a lock of theirs: one of them looks, ten times a second."""
    other = theirs.lock(name, timeout=60)
    assert other.acquire()
    answers: list[holdfast.Lease | None] = []
    crowd = [
        threading.Thread(target=lambda: answers.append(ours.lock(name).acquire(timeout=6)))
        for _ in range(10)
    ]
    for thread in crowd:
        thread.start()
    time.sleep(0.5)
    before, begun = evaluations(theirs), time.monotonic()
    time.sleep(1)
    until(lambda: evaluations(theirs) - before >= 3, "they look")
    asked, took = evaluations(theirs) - before, time.monotonic() - begun
    for thread in crowd:
        thread.join()
    other.release()
    assert answers == [None] * 10
    assert asked <= 30 * took, (asked, took)


def evaluations(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    assert isinstance(stats, dict)
    return int(stats["cmdstat_evalsha"]["calls"])


@pytest.mark.req("R30", "B4", "R1")
def test_a_crowd_of_both_kinds_counts_right(url: Url, theirs: redis.Redis, name: str) -> None:
    """What each does under the lock is not atomic: one overlap and the sum is wrong."""
    rounds, each = 40, 3
    counter = f"{name}-sum"
    inside = 0
    overlaps: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal inside
        inside += 1
        if inside != 1:
            overlaps.append(inside)
        value = int(theirs.get(counter) or 0)
        time.sleep(0.001)
        theirs.set(counter, value + 1)
        inside -= 1

    def their_turns() -> None:
        try:
            for _ in range(rounds):
                with theirs.lock(name, timeout=30, sleep=0.005):
                    work()
        except BaseException as error:
            errors.append(error)

    def our_turns(locks: holdfast.Locks) -> None:
        try:
            for _ in range(rounds):
                with locks.lock(name, timeout=60):
                    work()
        except BaseException as error:
            errors.append(error)

    address = url("plain") + "&poll=0.005"
    with holdfast.connect(address) as one, holdfast.connect(address) as two:
        crowd = [threading.Thread(target=their_turns) for _ in range(each)]
        crowd += [threading.Thread(target=our_turns, args=(c,)) for c in (one, two) * each]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    assert errors == []
    assert overlaps == []
    assert int(theirs.get(counter) or 0) == rounds * len(crowd)
    theirs.delete(counter)


@pytest.mark.req("R30", "B4", "B3")
def test_asyncio_excludes_and_is_excluded(url: Url, redis_server: object, name: str) -> None:
    async def main() -> None:
        port: int = redis_server.port  # type: ignore[attr-defined]
        async with aio.connect(url("plain")) as ours, redis.asyncio.Redis(port=port) as theirs:
            other = theirs.lock(name, timeout=10)
            async with ours.lock(name):
                assert await other.acquire(blocking=False) is False
            assert await other.acquire(blocking=False) is True
            assert await ours.lock(name).acquire(timeout=1.5) is None
            waiter = asyncio.create_task(ours.lock(name).acquire(timeout=20))
            await asyncio.sleep(0.05)
            await other.release()
            lease = await waiter
            assert lease is not None
            await lease.release()

    asyncio.run(main())


@pytest.mark.req("R30", "B4")
def test_a_lock_of_redsync_excludes(ours: holdfast.Locks, theirs: redis.Redis, name: str) -> None:
    """redsync writes base64 of sixteen random bytes, and compares before it deletes."""
    token = base64.b64encode(secrets.token_bytes(16)).decode()
    assert theirs.set(name, token, nx=True, px=10_000)
    assert ours.lock(name).acquire(timeout=1.5) is None
    script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"
    assert theirs.eval(script, 1, name, token) == 1
    with ours.lock(name, timeout=1):
        assert theirs.eval(script, 1, name, token) is None
        assert theirs.set(name, token, nx=True, px=10_000) is None


@pytest.mark.req("B4", "B1")
def test_tokens_increase_over_holders_that_have_none(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    tokens: list[int] = []
    for _ in range(3):
        with ours.lock(name) as lease:
            tokens.append(lease.fence)
        with theirs.lock(name, timeout=10):
            pass
    assert tokens == sorted(set(tokens))


@pytest.mark.req("B4", "eviction")
def test_evict_ends_their_lock_too(ours: holdfast.Locks, theirs: redis.Redis, name: str) -> None:
    other = theirs.lock(name, timeout=10)
    assert other.acquire()
    assert ours.evict(name) == 1
    assert not other.owned()


@pytest.mark.req("B4")
def test_data_is_not_taken_for_a_lock(ours: holdfast.Locks, theirs: redis.Redis, name: str) -> None:
    theirs.hset(name, "field", "data")
    with pytest.raises(holdfast.Misconfigured, match="no lock"):
        ours.lock(name).acquire()
    with pytest.raises(holdfast.Misconfigured, match="no lock"):
        ours.evict(name)
    assert ours.inspect(name) == []
    assert theirs.hgetall(name) == {"field": "data"}
    theirs.delete(name)
    with pytest.raises(holdfast.Misconfigured, match="prefix"):
        ours.lock("holdfast:{x}:s").acquire()


@pytest.mark.req("B4")
def test_other_modes_are_refused(ours: holdfast.Locks, name: str) -> None:
    with pytest.raises(holdfast.Unsupported):
        ours.rwlock(name).read().acquire()
    with pytest.raises(holdfast.Unsupported):
        ours.semaphore(name, 3).acquire()
    assert ours.capabilities.fairness == "none"
    assert not ours.capabilities.inspection
    with pytest.raises(holdfast.Misconfigured, match="native, plain, redisson"):
        holdfast.connect("redis://localhost?dialect=redission")


@pytest.mark.req("R33", "B4")
@pytest.mark.parametrize("dialect", ["plain", "redisson"])
def test_without_enough_replicas_it_is_given_back(
    url: Url, theirs: redis.Redis, name: str, dialect: str
) -> None:
    address = url(dialect) + "&replicas=1&replica_timeout=0.02"
    with (
        holdfast.connect(address, request_timeout=3) as ours,
        pytest.raises(holdfast.Unavailable),
    ):
        ours.lock(name).acquire(timeout=0.5)
    assert not theirs.exists(name)
