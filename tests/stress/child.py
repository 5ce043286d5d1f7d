"""A forked child of a worker, made while the worker's threads and tasks hold and wait.

Contract: of what its parent holds it sees nothing held and can release nothing (law 8); the client
that it inherited works for it, and so does one of its own; then it ends, by `os._exit` or by the
way out of Python, with or without a lock in its hands. It ends within LIMIT seconds.
Partner: `worker.py`, which forks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import holdfast
from holdfast import aio
from tests.stress.actor import Actor, Ledger, Plan, problem
from tests.stress.record import NAMES, Kind, Log, Record, now
from tests.stress.resource import Resource
from tests.stress.turn import Kept, task_turn, turn

__all__ = ["LIMIT", "live"]

LIMIT = 200
ENOUGH = 20.0
"""Seconds in which a child must get a lock that only children want: they hold it for moments, and
the longest that one of them can leave it behind is a lease; or a session, whose time begins anew
when its server is restarted."""
UNORDERED = 3
"""So many times as long where there is no line: others may be luckier, again and again. That nobody
at all is served is found by `check.liveness`."""

OWN = next(number for number, name in enumerate(NAMES) if name.text == "children")


def live(
    parents: Ledger, locks: holdfast.Locks | aio.Locks | None, url: str, folder: Path, seed: str
) -> NoReturn:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    signal.alarm(LIMIT + 5)  # should even that not work
    logging.getLogger("asyncio").disabled = True  # on the way out it finds its parent's tasks
    parents.resource.drop()
    _look(parents)
    log = Log(folder / f"child-{seed.replace(':', '-')}.log")
    resource = Resource(folder, os.getpid())
    ledger = Ledger(log, resource, parents.prefix, parents.modes, parents.forgetful)
    actor = Actor(ledger, seed)
    chance = actor.random.random
    if chance() < 0.5 or locks is None:
        locks = aio.connect(url) if isinstance(locks, aio.Locks) else holdfast.connect(url)
    keep: Kept | None = [] if chance() < 0.5 else None
    at_once, closes = chance() < 0.5, chance() < 0.3
    plans = [actor.plan(None), actor.plan(OWN), actor.plan(OWN if chance() < 0.5 else None)]
    enough = ENOUGH * (1 if locks.capabilities.fairness == "fifo" else UNORDERED)
    plans = [_limited(plan, enough) for plan in plans]

    if isinstance(locks, aio.Locks):
        asyncio.run(_tasks(actor, locks, plans, keep, at_once))
    else:
        for plan in plans:
            kept, over = keep if plan is plans[-1] else None, now() + enough
            while (got := turn(actor, locks, plan, kept)) is None and _again(plan, over):
                pass
            _check(plan, got)
        log.write(Record(Kind.EXIT, now()))
        if closes:
            locks.close()
    if at_once:
        os._exit(0)
    sys.exit(0)


async def _tasks(
    actor: Actor, locks: aio.Locks, plans: list[Plan], keep: Kept | None, at_once: bool
) -> None:
    for plan in plans:
        kept, over = keep if plan is plans[-1] else None, now() + abs(plan.timeout)
        while (got := await task_turn(actor, locks, plan, kept)) is None and _again(plan, over):
            pass
        _check(plan, got)
    actor.ledger.log.write(Record(Kind.EXIT, now()))
    if at_once:
        os._exit(0)
    # Else the end of the loop gives back what is kept.


def _limited(plan: Plan, enough: float) -> Plan:
    timeout = enough if plan.name == OWN else min(abs(plan.timeout), 1.0)
    return plan._replace(cancel=0.0, timeout=timeout)


def _again(plan: Plan, over: float) -> bool:
    """Whether to ask a store again that did not answer: it may have been away, but not for ever."""
    return plan.name == OWN and now() < over


def _check(plan: Plan, got: bool | None) -> None:
    if plan.name == OWN and not got:
        problem(f"a forked child did not get {plan.text!r} within {plan.timeout} s")


def _look(parents: Ledger) -> None:
    for lease in list(parents.leases.values()):
        if lease.held or lease.remaining() or not lease.lost.is_set():
            problem(f"a forked child sees its parent's {lease!r}")
        if isinstance(lease, holdfast.Lease | holdfast.Permit) and lease.release():
            problem(f"a forked child released its parent's {lease!r}")
