"""The rules of Redlock, searched exhaustively in small worlds (R34, R36, B1).

The second half matters as much as the first: a model that misses no rule when it is taken out
checks nothing. Worlds are as large as fits into CI; `python -m tests.model` searches larger ones.
"""

from __future__ import annotations

import pytest

from tests.model.redlock import Rules, World, search

SKEWED = (2, 0, 0)

SOUND = {
    "nothing happens": World(ends=3),
    "the clocks differ": World(ends=2, skew=SKEWED),
    "a node forgets": World(ends=3, crashes=1),
    "a node forgets, and the clocks differ": World(ends=1, crashes=1, skew=SKEWED),
    "two nodes forget": World(ends=1, crashes=2),
    "a node restarts and remembers": World(ends=1, restarts=1),
    "votes end early": World(ends=0, drops=2, skew=SKEWED),
    "three clients": World(ends=0, clients=3),
    "leases are renewed, and a node forgets": World(ends=1, crashes=1, renewals=1, longer=1),
}


@pytest.mark.req("R1", "R34", "R36", "B1")
@pytest.mark.parametrize("world", SOUND.values(), ids=SOUND)
def test_no_order_of_events_breaks_the_rules(world: World) -> None:
    states, violation = search(world, Rules())
    assert violation is None, violation
    assert states > 1000


MISSED = {
    "the floor": (World(ends=3, crashes=1), Rules(floor=False), "same token"),
    "the owner's condition": (World(ends=0, drops=2), Rules(owner=False), "same token"),
    "quarantine": (World(ends=0, crashes=1), Rules(quarantine=False), "same token"),
    "quarantine, for exclusion": (
        World(ends=0, crashes=1, skew=SKEWED), Rules(quarantine=False), "at the same time",
    ),
    "who voted before": (World(ends=0, drops=2, skew=SKEWED), Rules(voters=False), "same token"),
    "quarantine of renewals": (
        World(ends=2, crashes=1, renewals=1, longer=2, fenced=False),
        Rules(renewals=False),
        "at the same time",
    ),
}  # fmt: skip


@pytest.mark.req("R36", "B1")
@pytest.mark.parametrize("missing", MISSED)
def test_a_rule_that_is_taken_out_is_missed(missing: str) -> None:
    world, rules, what = MISSED[missing]
    _, violation = search(world, rules)
    assert violation is not None
    assert what in violation.what
    assert search(world, Rules())[1] is None  # and it was this rule


@pytest.mark.req("B1")
def test_a_violation_is_told_step_by_step() -> None:
    _, violation = search(World(ends=3, crashes=1), Rules(floor=False))
    assert violation is not None
    assert violation.trace[0] == "at 0: client 0 begins"
    assert any("forgets everything" in event for event in violation.trace)
