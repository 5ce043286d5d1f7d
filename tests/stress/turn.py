"""One turn of an actor: ask, acquire, hold, release; in a thread, and the same in a task.

Contract: True if it got what it asked for, None if the store was away: that is no error, because a
process that was stopped inside it keeps the others out. With `keep` the lease is not given back,
and what keeps it alive is left there.
Partner: `actor.py`, which has all that needs no waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import holdfast
from holdfast import aio
from tests.stress.actor import Actor, Plan

__all__ = ["Kept", "task_turn", "turn"]

Kept = list[tuple[object, Iterator[float]]]


def turn(actor: Actor, locks: holdfast.Locks, plan: Plan, keep: Kept | None = None) -> bool | None:
    """Whether it was had; None: the store did not answer."""
    number = actor.asks(plan)
    try:
        lease = actor.lock(locks, plan).acquire(timeout=plan.timeout)
    except holdfast.Unavailable:
        actor.gave_up(number, unanswered=True)
        return None
    if lease is None:
        actor.gave_up(number)
        return False
    steps = actor.hold(number, plan, lease)
    if keep is not None:
        next(steps, None)
        keep.append((lease, steps))
        return True
    for pause in steps:
        time.sleep(pause)
    if not lease.release():
        actor.lost(plan, lease)
    if plan.late:
        time.sleep(plan.late)
        actor.write(number, plan, lease)
    return True


async def task_turn(
    actor: Actor, locks: aio.Locks, plan: Plan, keep: Kept | None = None
) -> bool | None:
    number = actor.asks(plan)
    try:
        lease = await _acquire(actor.task_lock(locks, plan), plan)
    except holdfast.Unavailable:
        actor.gave_up(number, unanswered=True)
        return None
    if lease is None:
        actor.gave_up(number)
        return False
    steps = actor.hold(number, plan, lease)
    if keep is not None:
        next(steps, None)
        keep.append((lease, steps))
        return True
    for pause in steps:
        await asyncio.sleep(pause)
    if not await lease.release():
        actor.lost(plan, lease)
    if plan.late:
        await asyncio.sleep(plan.late)
        actor.write(number, plan, lease)
    return True


async def _acquire(lock: aio.Lock | aio.Semaphore, plan: Plan) -> aio.Lease | aio.Permit | None:
    if not plan.cancel:
        return await lock.acquire(timeout=plan.timeout)
    task = asyncio.ensure_future(lock.acquire(timeout=plan.timeout))
    await asyncio.wait([task], timeout=plan.cancel)
    task.cancel()  # nothing happens if it is done
    try:
        return await task
    except asyncio.CancelledError:
        return None
