"""Ctrl-C at every line of acquire and release leaves nothing behind (law 4): without a server."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator

import pytest

import holdfast
from tests.faults.interrupt import (
    IN_MEMORY,
    LONG,
    STORED,
    Work,
    acquire_and_release,
    any_after_waiting,
    any_of_them,
    at_every_line,
    at_random_moments,
    busy_try,
    computed_once,
    counted_down,
    decorated,
    entered_twice,
    fixed_entered_twice,
    handed_over,
    held_and_forgotten,
    interrupted,
    led,
    lines,
    lock_release,
    nothing_is_left,
    plain_with,
    readers_and_permits,
    run_by_the_leader,
    several,
    several_in_vain,
    timed_out_wait,
    waited_in_vain,
)

WORKS: list[Work] = [
    plain_with,
    acquire_and_release,
    lock_release,
    busy_try,
    timed_out_wait,
    handed_over,
    entered_twice,
    fixed_entered_twice,
    readers_and_permits,
    several,
    several_in_vain,
    any_of_them,
    any_after_waiting,
    decorated,
    computed_once,
    held_and_forgotten,
    led,
    run_by_the_leader,
    counted_down,
    waited_in_vain,
]


stores = itertools.count()


@pytest.fixture
def each(request: pytest.FixtureRequest) -> int:
    """Strike at each so many lines."""
    return STORED if request.node.callspec.params["clients"] == "sqlite" else IN_MEMORY


@pytest.fixture(params=["memory", "sqlite"])
def clients(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    url = f"memory://interrupt{next(stores)}"
    if request.param == "sqlite":
        url = f"sqlite://{tmp_path}/locks.db"
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        yield locks, other


@pytest.mark.req("B3", "R2", "KeyboardInterrupt at any line")
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_interrupt_at_every_line(
    work: Work, clients: tuple[holdfast.Locks, holdfast.Locks], each: int
) -> None:
    at_every_line(work, *clients, each)


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
def test_interrupt_at_every_line_with_a_lock_that_lives_on(
    clients: tuple[holdfast.Locks, holdfast.Locks], each: int
) -> None:
    """The lock object survives the interrupt, so no finaliser of it helps; not even at the entry
    of `__exit__`, before its first statement, where only the guard's death can be noticed."""
    locks, other = clients
    lock = locks.lock("x", ttl=LONG)

    def work() -> None:
        with lock:
            pass

    for n in lines(each):
        where = interrupted(work, n)
        nothing_is_left(locks, other, where)
        assert not any(lease.held for lease in lock._leases), where
        if not where:
            break


@pytest.mark.req("B3", "B5", "KeyboardInterrupt at any line")
def test_interrupt_at_every_line_of_an_election_that_lives_on(
    clients: tuple[holdfast.Locks, holdfast.Locks], each: int
) -> None:
    """The election keeps its leaderships alive: an interrupted one must not be among them. (As
    with a lock, what `campaign` has returned is the caller's.)"""
    locks, other = clients
    election = locks.election("x", ttl=LONG)

    def work() -> None:
        election.run_when_leader(lambda leadership: None)

    for n in lines(each):
        where = interrupted(work, n)
        nothing_is_left(locks, other, where)
        assert election.resign() is False, where
        if not where:
            break


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")
def test_real_signals_at_random_moments(clients: tuple[holdfast.Locks, holdfast.Locks]) -> None:
    at_random_moments(*clients)
