"""`optimistic`: what a commit says whose answer is lost."""

from __future__ import annotations

import pytest
from tests.unit.toolbox.faulty import Faulty

import holdfast


@pytest.mark.req("B5", "law 2")
def test_a_commit_without_an_answer_under_another_is_not_said_to_have_failed(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    faulty = Faulty(locks)
    mine, theirs = locks.optimistic("x"), other.optimistic("x")
    faulty.losing = 1
    assert mine.commit(mine.version()) == theirs.version()
    faulty.losing = 1
    faulty.then = lambda: (theirs.commit(theirs.version()), None)[1]
    with pytest.raises(holdfast.Unavailable, match="not known"):
        mine.commit(mine.version())
