"""`?dialect=redisson` beside a client that does what Redisson's RLock does."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import holdfast
from holdfast.ports import clock
from tests.interop.redisson import RLock
from tests.servers import RedisCluster, RedisServer

pytestmark = pytest.mark.servers
Url = Callable[[str], str]


@pytest.fixture
def ours(url: Url) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url("redisson")) as locks:
        yield locks


@pytest.fixture
def java(theirs: redis.Redis, name: str) -> RLock:
    return RLock(theirs, name)


@pytest.mark.req("R31", "B4", "R1")
def test_java_is_excluded_and_told_for_how_long(ours: holdfast.Locks, java: RLock) -> None:
    with ours.lock(java.name, ttl=20):
        left = java.try_lock()
        assert left is not None
        assert 10_000 < left <= 20_000
        assert java.unlock() is None
        assert java.renew() is False
    assert java.try_lock() is None
    assert java.unlock() == 1


@pytest.mark.req("R31", "B4", "R1", "R5")
def test_what_java_entered_twice_excludes_until_it_has_left_twice(
    ours: holdfast.Locks, theirs: redis.Redis, java: RLock
) -> None:
    assert java.try_lock() is None
    assert java.try_lock() is None
    assert theirs.hgetall(java.name) == {java.owner: "2"}
    assert ours.lock(java.name).acquire(blocking=False) is None
    assert java.unlock() == 0
    assert ours.lock(java.name).acquire(timeout=1.5) is None
    assert theirs.hgetall(java.name) == {java.owner: "1"}
    assert java.unlock() == 1
    with ours.lock(java.name, timeout=0):
        pass


@pytest.mark.req("R31", "B4")
def test_what_is_in_the_key_is_what_redisson_would_write(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    owners: set[str] = set()
    for _ in range(2):
        with ours.lock(name, ttl=20, reentrant=True) as lease:
            fields = theirs.hgetall(name)
            assert isinstance(fields, dict)
            ((owner, count),) = fields.items()
            assert isinstance(owner, str)
            assert count == "1"
            assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+", owner)
            assert 10_000 < int(theirs.pttl(name)) <= 20_000
            owners.add(owner)
            with ours.lock(name, ttl=20, reentrant=True):  # counted here, and not there
                assert theirs.hgetall(name) == {owner: "1"}
            assert lease.held
    assert len(owners) == 2
    assert not theirs.exists(name)


@pytest.mark.req("R31", "B4", "R9")
def test_their_message_wakes_us(ours: holdfast.Locks, java: RLock) -> None:
    """Nothing else would for thirty seconds."""
    assert java.try_lock(lease=60) is None
    answers: list[tuple[float, holdfast.Lease | None]] = []

    def wait() -> None:
        lease = ours.lock(java.name).acquire(timeout=20)
        answers.append((clock.now(), lease))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.3)
    assert not answers
    freed = clock.now()
    assert java.unlock() == 1
    waiter.join(20)
    ((moment, lease),) = answers
    assert lease is not None
    assert moment - freed < 12
    assert java.try_lock() is not None
    lease.release()


@pytest.mark.req("R31", "B4", "R9")
def test_our_message_wakes_them(ours: holdfast.Locks, java: RLock) -> None:
    lease = ours.lock(java.name, ttl=60).acquire()
    assert lease is not None
    answers: list[tuple[float, bool]] = []

    def wait() -> None:
        granted = java.lock(timeout=20)
        answers.append((clock.now(), granted))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.3)
    assert not answers
    freed = clock.now()
    lease.release()
    waiter.join(20)
    ((moment, granted),) = answers
    assert granted
    assert moment - freed < 12
    assert ours.lock(java.name).acquire(blocking=False) is None
    assert java.unlock() == 1


@pytest.mark.req("R31", "B4", "R21", "eviction")
def test_their_force_unlock_is_a_loss_at_the_next_renewal(
    ours: holdfast.Locks, java: RLock
) -> None:
    lease = ours.lock(java.name, ttl=60, renew=0.1).acquire()
    assert lease is not None
    assert java.force_unlock()
    assert lease.lost.wait(20)
    assert not lease.held
    assert java.try_lock() is None
    assert lease.release() is False
    assert java.renew() is True
    assert java.unlock() == 1


@pytest.mark.req("R31", "B4", "eviction")
def test_our_eviction_is_their_force_unlock(ours: holdfast.Locks, java: RLock) -> None:
    assert java.try_lock() is None
    (info,) = ours.inspect(java.name)
    assert info.holders[0].fence is None
    assert java.owner not in repr(info)
    assert ours.evict(java.name) == 1
    assert java.renew() is False
    assert java.unlock() is None


@pytest.mark.req("R31", "B4", "R20", "R6")
def test_our_renewal_keeps_them_out_and_their_expiry_lets_us_in(
    ours: holdfast.Locks, java: RLock
) -> None:
    with ours.lock(java.name, ttl=5, renew=0.3):
        assert java.lock(timeout=6) is False
    begun = time.monotonic()
    assert java.try_lock(lease=0.4) is None
    with ours.lock(java.name, timeout=20):
        assert 0.3 < time.monotonic() - begun < 15
        assert java.unlock() is None
        assert java.try_lock() is not None


@pytest.mark.req("R31", "B4", "names")
@pytest.mark.parametrize("shape", ["{}", "a{{{}}}b", "{}}}"])
def test_the_channel_follows_their_rule(
    ours: holdfast.Locks, theirs: redis.Redis, name: str, shape: str
) -> None:
    java = RLock(theirs, shape.format(name))
    with theirs.pubsub() as ear:  # type: ignore[no-untyped-call]
        ear.subscribe(java.channel)
        assert ear.get_message(timeout=5) is not None
        with ours.lock(java.name):
            pass
        heard = ear.get_message(timeout=5)
        assert heard is not None
        assert heard["channel"] == java.channel
        assert heard["data"] == "0"


@pytest.mark.req("R31", "B4")
def test_another_kind_of_lock_excludes_or_is_refused(
    ours: holdfast.Locks, theirs: redis.Redis, name: str
) -> None:
    """A read-write lock is a hash with a mode; a semaphore is a string, and no lock."""
    theirs.hset(name, mapping={"mode": "read", "somebody:1": "1"})
    theirs.pexpire(name, 10_000)
    assert ours.lock(name).acquire(blocking=False) is None
    theirs.delete(name)
    theirs.set(name, "3")
    with pytest.raises(holdfast.Misconfigured, match="no lock"):
        ours.lock(name).acquire()
    theirs.delete(name)


@pytest.mark.req("R31", "B4", "R1")
def test_a_crowd_of_both_kinds_counts_right(url: Url, theirs: redis.Redis, name: str) -> None:
    rounds, each = 30, 3
    counter = f"{name}-sum"
    errors: list[BaseException] = []

    def work() -> None:
        value = int(theirs.get(counter) or 0)
        time.sleep(0.001)
        theirs.set(counter, value + 1)

    def their_turns() -> None:
        try:
            java = RLock(theirs, name)
            for _ in range(rounds):
                assert java.lock(timeout=60)
                work()
                assert java.unlock() == 1
        except BaseException as error:
            errors.append(error)

    def our_turns(locks: holdfast.Locks) -> None:
        try:
            for _ in range(rounds):
                with locks.lock(name, timeout=60):
                    work()
        except BaseException as error:
            errors.append(error)

    with holdfast.connect(url("redisson")) as one, holdfast.connect(url("redisson")) as two:
        crowd = [threading.Thread(target=their_turns) for _ in range(each)]
        crowd += [threading.Thread(target=our_turns, args=(c,)) for c in (one, two) * each]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    assert errors == []
    assert int(theirs.get(counter) or 0) == rounds * len(crowd)
    theirs.delete(counter)


@pytest.mark.req("R31", "R37", "B4")
@pytest.mark.parametrize("dialect", ["plain", "redisson"])
def test_in_a_cluster(redis_cluster: RedisCluster, dialect: str) -> None:
    """Redisson listens to shard channels there: it is told on one; we look for theirs."""
    with holdfast.connect(f"{redis_cluster.url}?dialect={dialect}") as ours:
        for name in ("x", "{tag}y", "a}b{c}"):
            home = redis_cluster.owner_of(name)
            with redis.Redis(port=home.port) as node, node.pubsub() as ear:
                channel = RLock(node, name).channel
                ear.execute_command("SSUBSCRIBE", channel)
                assert ear.parse_response(timeout=5)[0] == b"ssubscribe"
                with ours.lock(name) as lease:
                    assert lease.fence > 0
                    assert ours.lock(name).acquire(timeout=1.5) is None
                if dialect == "redisson":
                    assert ear.parse_response(timeout=5) == [b"smessage", channel.encode(), b"0"]
                    # Somebody else's, who tells nobody we could hear.
                    node.hset(name, "java:1", "1")
                    node.pexpire(name, 60_000)
                else:
                    node.set(name, "theirs", px=60_000)
                timer = threading.Timer(0.5, RLock(node, name).force_unlock)
                timer.start()
                with ours.lock(name, timeout=20):
                    pass
                timer.join()
        with pytest.raises(holdfast.Misconfigured, match="braces"):
            ours.lock("a}b").acquire()


ACL = Path(__file__).parents[2] / "docs" / "backends" / "redis-dialects-acl.txt"


@pytest.mark.req("R30", "R31", "B4")
@pytest.mark.parametrize("dialect", ["plain", "redisson"])
@pytest.mark.parametrize("deaf", [False, True])
def test_the_documented_acl_is_enough(
    redis_server: RedisServer, theirs: redis.Redis, name: str, dialect: str, deaf: bool
) -> None:
    """Exactly the documented commands, on these keys and channels; and a user who may not
    subscribe waits by looking."""
    allowed = [word for word in ACL.read_text().split() if word.startswith("+")]
    denied = ["-SUBSCRIBE"] if deaf else []
    theirs.execute_command(  # type: ignore[no-untyped-call]
        "ACL", "SETUSER", name, "on", ">secret", "~interop-*", "~mine:*", "&mine:*",
        "&redisson_lock__channel:*", "-@all", *allowed, *denied,
    )  # fmt: skip
    host = f"{name}:secret@127.0.0.1:{redis_server.port}"
    url = (
        f"redis://{host}/0?dialect={dialect}&prefix=mine&window=60&heartbeat={0.3 if deaf else 30}"
    )
    try:
        with holdfast.connect(url) as ours, holdfast.connect(url) as others:
            lease = ours.lock(name, ttl=60).acquire()
            assert lease is not None
            lease.renew()
            assert others.lock(name).acquire(timeout=1.5) is None
            answers: list[holdfast.Lease | None] = []
            waiter = threading.Thread(
                target=lambda: answers.append(others.lock(name).acquire(timeout=20))
            )
            waiter.start()
            time.sleep(0.3)
            assert [info.name for info in ours.inspect()] == [name]
            lease.release()
            waiter.join(20)
            assert answers
            assert answers[0] is not None
            assert ours.evict(name) == 1
            assert answers[0].release() is False
    finally:
        theirs.execute_command("ACL", "DELUSER", name)  # type: ignore[no-untyped-call]
