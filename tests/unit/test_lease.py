"""The lease's state machine, and pauses: nothing here waits, talks or reads a clock."""

from __future__ import annotations

import math

import pytest

from holdfast.core import backoff
from holdfast.core.lease import JITTER, LeaseState, Lose, Renew, Sleep, Step, valid_until

SENT = 1000.0


def lease(renew_every: float | None = 10.0, random: float = 0.0) -> LeaseState:
    return LeaseState(SENT, SENT + 30, renew_every, random)


@pytest.mark.req("law 1")
def test_validity_counts_from_before_the_request_and_loses_the_drift() -> None:
    assert valid_until(SENT, 30.0, drift=0.0) == SENT + 30
    assert valid_until(SENT, 30.0) == pytest.approx(SENT + 30 - 0.06)
    assert valid_until(SENT, 0.001) > SENT


@pytest.mark.req("R20", "law 5")
@pytest.mark.parametrize(
    ("now", "step"),
    [
        (SENT, Sleep(SENT + 10)),
        (SENT + 9.999, Sleep(SENT + 10)),
        (SENT + 10, Renew()),
        (SENT + 29.999, Renew()),
        (SENT + 30, Lose("its time ran out without a renewal")),
        (SENT + 31.5, Lose("its time ran out without a renewal, 1.5 s ago")),
    ],
)
def test_what_to_do_when(now: float, step: Step) -> None:
    assert lease().step(now) == step


@pytest.mark.req("R22")
def test_a_fixed_lease_sleeps_until_its_end() -> None:
    fixed = lease(renew_every=None)
    assert fixed.step(SENT + 29) == Sleep(SENT + 30)
    assert isinstance(fixed.step(SENT + 30), Lose)


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_jitter_is_early_and_never_late(random: float) -> None:
    jittered = lease(random=random)
    assert SENT + 10 * (1 - JITTER) <= jittered.renew_at <= SENT + 10
    jittered.renewed(SENT + 10, SENT + 40, random)
    assert SENT + 10 + 10 * (1 - JITTER) <= jittered.renew_at <= SENT + 20


@pytest.mark.req("R20")
def test_a_renewal_moves_the_end_and_the_next_renewal() -> None:
    renewed = lease()
    renewed.renewed(SENT + 10, SENT + 40, 0.0)
    assert renewed.until == SENT + 40
    assert renewed.step(SENT + 11) == Sleep(SENT + 20)


@pytest.mark.req("law 6")
def test_a_renewal_never_shortens_what_is_believed() -> None:
    late = lease()
    late.renewed(SENT + 1, SENT + 5, 0.0)
    assert late.until == SENT + 30


def test_a_renewal_by_hand_starts_no_renewals() -> None:
    fixed = lease(renew_every=None)
    fixed.renewed(SENT + 10, SENT + 40, 0.0)
    assert fixed.renew_at == math.inf
    assert fixed.step(SENT + 39) == Sleep(SENT + 40)


@pytest.mark.req("R21")
def test_failures_are_counted_until_one_succeeds() -> None:
    failing = lease()
    for number in range(1, 4):
        failing.unanswered(SENT + 10 + number, 0.5)
        assert failing.failures == number
        assert failing.step(SENT + 10 + number) == Sleep(SENT + 10.5 + number)
    assert failing.until == SENT + 30  # no answer says nothing about the store
    failing.renewed(SENT + 15, SENT + 45, 0.0)
    assert failing.failures == 0


@pytest.mark.req("R21", "law 5")
def test_a_pause_past_the_end_does_not_outlive_it() -> None:
    failing = lease()
    failing.unanswered(SENT + 29, 10.0)
    assert failing.step(SENT + 29) == Sleep(SENT + 30)


@pytest.mark.req("law 1")
@pytest.mark.parametrize(
    ("now", "certain_until", "end", "trusted"),
    [
        (SENT, math.inf, "", True),
        (SENT + 29.999, math.inf, "", True),
        (SENT + 30, math.inf, "", False),
        (SENT + 5, SENT + 6, "", True),
        (SENT + 6, SENT + 6, "", False),
        (SENT, math.inf, "released", False),
    ],
)
def test_trust_is_computed_from_the_clock(
    now: float, certain_until: float, end: str, trusted: bool
) -> None:
    state = lease()
    state.certain_until, state.end = certain_until, end
    assert state.trusted(now) is trusted


@pytest.mark.parametrize(
    ("failures", "random", "remaining", "pause"),
    [
        (1, 0.0, math.inf, 0.01),
        (1, 1.0, math.inf, 0.02),
        (2, 1.0, math.inf, 0.04),
        (6, 1.0, math.inf, 0.64),
        (7, 1.0, math.inf, 1.0),
        (10**9, 1.0, math.inf, 1.0),
        (7, 1.0, 0.4, 0.1),  # a quarter of what is left
        (7, 1.0, 0.0, 0.005),  # never a busy loop
        (7, 1.0, -3.0, 0.005),
    ],
)
def test_pauses_grow_and_stay_within_reason(
    failures: int, random: float, remaining: float, pause: float
) -> None:
    assert backoff.pause(failures, random, remaining) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("failures", "random", "remaining", "pause"),
    [
        (1, 0.0, math.inf, 0.0005),  # as short as asked for
        (3, 1.0, math.inf, 0.004),
        (9, 1.0, math.inf, 0.25),
        (9, 1.0, 0.4, 0.1),
        (9, 1.0, 0.0, 0.005),
    ],
)
def test_pauses_of_other_lengths(
    failures: int, random: float, remaining: float, pause: float
) -> None:
    found = backoff.pause(failures, random, remaining, first=0.001, longest=0.25)
    assert found == pytest.approx(pause)
