"""What type checkers must say about the blocking API. Only read, by `tests/test_typing.py`."""

from __future__ import annotations

from typing import assert_type

import holdfast
from holdfast import (
    AcquireTimeout,
    AnyStripe,
    Barrier,
    Capabilities,
    Election,
    Latch,
    Leader,
    Leadership,
    Lease,
    LeaseLost,
    Lock,
    LockInfo,
    LockOptions,
    Locks,
    Mode,
    MultiLease,
    MultiLock,
    Observation,
    Once,
    Permit,
    RWLock,
    Semaphore,
    StripeLease,
    Stripes,
)

locks = holdfast.connect("memory://", request_timeout=2.0, label="typing")
assert_type(locks, Locks)
assert_type(locks.capabilities, Capabilities)


def told(loss: LeaseLost) -> None:
    assert_type(loss.name, str)
    assert_type(loss.reason, str)
    assert_type(loss.fence, int | None)


lock = locks.lock(
    "a",
    ttl=30,
    renew=10.0,
    timeout=-1,
    fair=False,
    reentrant=True,
    metadata={"job": "nightly"},
    on_lost=told,
)
assert_type(lock, Lock)
assert_type(lock.name, str)
assert_type(lock.locked(), bool)
assert_type(lock.acquire(), Lease | None)
assert_type(lock.acquire(False), Lease | None)
assert_type(lock.acquire(blocking=True, timeout=5), Lease | None)
assert_type(lock.release(), bool)

with lock as lease:
    assert_type(lease, Lease)
    assert_type(lease.fence, int)
    assert_type(lease.name, str)
    assert_type(lease.mode, Mode)
    assert_type(lease.held, bool)
    assert_type(lease.uncertain, bool)
    assert_type(lease.remaining(), float)
    assert_type(lease.lost.wait(1.0), bool)
    assert_type(lease.lost.is_set(), bool)
    assert_type(lease.renew(), float)
    assert_type(lease.check(), None)
    assert_type(lease.detach(), None)
    assert_type(lease.downgrade(), None)
    assert_type(lease.release(), bool)
    lease.on_lost(told)
    lease.on_lost(lambda loss: print(loss.reason))

if tried := lock.acquire(blocking=False):
    with tried as same:
        assert_type(same, Lease)

rwlock = locks.rwlock("b", ttl=5)
assert_type(rwlock, RWLock)
assert_type(rwlock.read(), Lock)
with rwlock.write() as writer:
    assert_type(writer, Lease)

semaphore = locks.semaphore("c", 3, take=2, timeout=1)
assert_type(semaphore, Semaphore)
assert_type(semaphore.acquire(), Permit | None)
with semaphore as permit:
    assert_type(permit, Permit)
    assert_type(permit.fence, int | None)

multi = locks.multi("a", "b", ttl=5, timeout=1)
assert_type(multi, MultiLock)
assert_type(multi.names, tuple[str, ...])
assert_type(multi.acquire(timeout=1), MultiLease | None)
with multi as both:
    assert_type(both, MultiLease)
    assert_type(both.fences, dict[str, int])
    assert_type(both.release(), bool)

stripes = locks.stripes("s", 16, renew=False)
assert_type(stripes, Stripes)
assert_type(stripes.of(b"key"), Lock)
assert_type(stripes.index(77), int)
assert_type(stripes.any(), AnyStripe)
assert_type(stripes.all(), MultiLock)
with stripes.any() as stripe:
    assert_type(stripe, StripeLease)
    assert_type(stripe.stripe, int)
    assert_type(stripe.fence, int)


@locks.locked("report:{user}", ttl=5)
def report(user: int, *, year: int = 2026) -> str:
    return f"{user} {year}"


assert_type(report(1, year=2025), str)

options: LockOptions = {"ttl": 5, "renew": False}
assert_type(locks.lock("d", **options), Lock)

assert_type(locks.inspect("a"), list[LockInfo])
assert_type(locks.evict("a"), int)
assert_type(locks.close(), None)
with holdfast.connect("memory://") as client:
    assert_type(client, Locks)

try:
    pass
except AcquireTimeout as busy:
    also: TimeoutError = busy

once = locks.once("e", 60, lambda: "token", ahead=6, lease=30, timeout=5, metadata={"job": "x"})
assert_type(once, Once[str])
assert_type(once.get(timeout=1), str)
assert_type(once.invalidate("token"), None)
with once.hold() as using:
    assert_type(using.value, str)
    assert_type(using.held, bool)

election = locks.election("f", ttl=5)
assert_type(election, Election)
assert_type(election.campaign({"port": 1}, timeout=5), Leadership | None)
assert_type(election.leader(), Leader | None)
assert_type(election.resign(), bool)
assert_type(election.observe(timeout=1), Observation)
for leader in election.observe():
    assert_type(leader, Leader | None)


def lead(leadership: Leadership) -> int:
    assert_type(leadership.fence, int)
    assert_type(leadership.proclaim("x"), None)
    return 1


assert_type(election.run_when_leader(lead, value="x"), int)

latch = locks.latch("g", 3)
assert_type(latch, Latch)
assert_type(latch.count_down(2), int)
assert_type(latch.wait(1), bool)
assert_type(latch.count(), int)

barrier = locks.barrier("h", 3, ttl=5)
assert_type(barrier, Barrier)
assert_type(barrier.wait(timeout=1), int)
assert_type(barrier.waiting(), int)
assert_type(barrier.broken(), bool)
assert_type(barrier.reset(), None)
assert_type(barrier.abort(), None)
