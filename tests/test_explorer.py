"""20 000 schedules of the core, random and systematic, and a check that the explorer can see."""

from __future__ import annotations

import pytest

from holdfast.types import Mode
from tests.explorer.explore import CASES, random_schedule, replay, systematic
from tests.explorer.history import Record, violations

RANDOM = 16_000
SLICES = 8
SYSTEMATIC = 500  # for each of the eight cases


@pytest.mark.req("R1", "R2", "R3", "R6", "R8", "R10", "R21", "B1", "B2")
@pytest.mark.parametrize("part", range(SLICES))
def test_random_schedules(part: int) -> None:
    size = RANDOM // SLICES
    for number in range(part * size, (part + 1) * size):
        report = random_schedule(number)
        assert not report.violations, f"replay with: make explore REPLAY=r{number}"


@pytest.mark.req("R1", "R2", "R8", "R9", "R10", "B1")
@pytest.mark.parametrize("case", CASES)
def test_systematic_schedules(case: str) -> None:
    for name, report in systematic(case, SYSTEMATIC):
        assert not report.violations, f"replay with: make explore REPLAY={name}"


def test_schedules_do_what_they_are_for() -> None:
    """Holds happen, every fault strikes, and claims are lost, refused and re-entered: a search
    that never got anywhere would find nothing wrong either."""
    reports = [random_schedule(number) for number in range(400)]
    faults = {fault for report in reports for fault in report.faults}
    assert faults >= {"lose_request", "lose_reply", "cancel", "crash", "pause", "kill_keeper"}
    records = [record for report in reports for record in report.records]
    assert sum(r.held for r in records) > 800
    assert any(r.lost < r.released for r in records)
    assert any(r.reentry for r in records)
    assert {r.mode for r in records if r.held} == set(Mode)


def test_schedules_replay_exactly() -> None:
    for name in ["r0", "r7", "scancel:", "slost-reply:3=0,9=0"]:
        one, other = replay(name), replay(name)
        assert one.trace
        assert one.trace == other.trace


def record(acquired: float, released: float, mode: Mode = Mode.EXCLUSIVE) -> Record:
    made = Record("w", "n", mode, 1, 1, True, True, acquired)
    made.acquired, made.released = acquired, released
    return made


def test_the_checker_sees_overlaps() -> None:
    assert not violations([record(0, 1), record(1, 2)], False)
    assert violations([record(0, 1), record(0.5, 2)], False)
    assert not violations([record(0, 1, Mode.SHARED), record(0.5, 2, Mode.SHARED)], False)
    assert violations([record(0, 1, Mode.SHARED), record(0.5, 2)], False)
    assert violations([record(0, 1, Mode.PERMITS), record(0.5, 2, Mode.PERMITS)], False)


def test_the_checker_sees_overtaking() -> None:
    early, late = record(5, 6), record(1, 2)
    early.started, early.acked, late.started = 0.0, 0.5, 0.7
    assert any("overtaken" in line for line in violations([early, late], True))
