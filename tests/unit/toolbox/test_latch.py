"""Latches: what a count is worth whose answer is lost."""

from __future__ import annotations

import pytest
from tests.unit.toolbox.faulty import Faulty

import holdfast
from holdfast.toolbox import latch


@pytest.mark.req("B5", "law 2")
@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_lost_count_is_found_behind_those_of_others(
    locks: holdfast.Locks, other: holdfast.Locks, others: int
) -> None:
    faulty = Faulty(locks)
    faulty.losing = 1
    beside = other.latch("x", 100)

    def count() -> None:
        for _ in range(others):
            beside.count_down()

    faulty.then = count
    locks.latch("x", 100).count_down()
    assert beside.count() == 100 - 1 - others


@pytest.mark.req("B5", "law 2")
def test_a_count_that_never_arrived_is_sent_again(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    faulty = Faulty(locks)
    faulty.refusing = 2
    beside = other.latch("x", 100)
    faulty.then = lambda: (beside.count_down(), None)[1]
    locks.latch("x", 100).count_down()
    assert beside.count() == 100 - 1 - 2


@pytest.mark.req("B5", "law 2")
def test_nobody_remembers_a_count_so_it_is_not_repeated(
    locks: holdfast.Locks, other: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latch, "MEMORY", 3)
    faulty = Faulty(locks)
    faulty.losing = 1
    beside = other.latch("x", 100)

    def count() -> None:
        for _ in range(4):
            beside.count_down()

    faulty.then = count
    with pytest.raises(holdfast.Unavailable, match="not known"):
        locks.latch("x", 100).count_down()
    assert beside.count() == 100 - 1 - 4
    assert len(faulty.written) == 1
