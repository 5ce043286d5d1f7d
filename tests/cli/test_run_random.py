"""A little of `stress_run.py` in every run of the suite: something is done to `holdfast run` at a
random moment, and the command must not outlive the lock. Minutes of it: see that module."""

from __future__ import annotations

import random

import pytest

from tests.cli.stress_run import FAULTS, SERVED_FAULTS, play


@pytest.mark.req("B2", "B7", "R1", "law 5")
@pytest.mark.parametrize("fault", SERVED_FAULTS)
def test_the_command_does_not_outlive_the_lock(fault: str) -> None:
    seed = random.randrange(10**9)
    assert play(fault, seed, patient=True).violations == [], f"seed {seed}"


@pytest.mark.req("B2", "B7", "R1", "law 5")
@pytest.mark.parametrize("fault", FAULTS)
def test_nor_with_the_embedded_store(fault: str) -> None:
    seed = random.randrange(10**9)
    assert play(fault, seed, "sqlite", patient=True).violations == [], f"seed {seed}"
