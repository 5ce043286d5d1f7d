"""The benchmarks work: each scenario runs, and what it writes has its fields. No timing is judged.

And the arithmetic behind the figures, where a mistake would make them pretty and wrong.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import report
from bench.measure import Comparison, Goal, Result, compare, jain, overtakes, quantile
from bench.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]

FIGURES = {
    "plumbing": {"p50", "p99"},
    "held": {
        "keeper threads",
        "renew calls per round and 1000 leases",
        "largest batch",
        "renewal CPU s per round",
        "bytes per lease",
        "traced bytes per lease",
        "acquire all s",
        "release all s",
        "lost",
        "left over",
    },
    "handover-threads": {"us per change", "changes per s", "p50", "p99", "jain"},
    "handover-asyncio": {"us per change", "changes per s", "p50", "p99", "jain", "overtakes"},
    "crowd": {"us per change", "bytes per waiter"},
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )


def test_every_scenario_runs_and_says_what_it_measured(tmp_path: Path) -> None:
    ran = bench("--quick", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    page = (tmp_path / "RESULTS.md").read_text()
    assert set(FIGURES) == set(SCENARIOS)
    for name in SCENARIOS:
        said = json.loads((tmp_path / "results" / f"{name}.json").read_text())
        assert {"command", "date", "machine", "python", "pairs", "results"} <= set(said)
        assert said["command"] in page
        assert f"## {name}" in page
        assert said["results"]
        for result in said["results"]:
            check(name, result)


def check(name: str, result: dict[str, Any]) -> None:
    assert result["scenario"] == name
    for field in ("case", "placement", "subject", "key"):
        assert result[field], field
    measured = result["measured"]
    assert set(measured["figures"]) >= FIGURES[name]
    assert result["key"] in measured["figures"]
    if measured["ratio"] is not None:
        assert result["floor"]
        assert measured["lowest"] <= measured["ratio"] <= measured["highest"]
    counted = {"lost", "left over", "overtakes"} & set(measured["figures"])
    assert {figure: measured["figures"][figure] for figure in counted} == dict.fromkeys(counted, 0)
    for goal in result["goals"]:
        assert goal["figure"] == "ratio" or goal["figure"] in measured["figures"]


def test_scenarios_can_be_chosen() -> None:
    assert bench("--list").stdout.split() == list(SCENARIOS)
    wrong = bench("plumbign")
    assert wrong.returncode == 2
    assert "no scenario 'plumbign'" in wrong.stdout


# -- arithmetic ------------------------------------------------------------------------------------


def test_ratios_are_of_pairs_and_the_median_is_given() -> None:
    ours = iter([{"t": 2.0}, {"t": 30.0}, {"t": 3.0}])
    theirs = iter([{"t": 1.0}, {"t": 10.0}, {"t": 1.5}])
    measured = compare(3, "t", lambda: next(ours), lambda: next(theirs))
    assert (measured.lowest, measured.ratio, measured.highest) == (2.0, 2.0, 3.0)
    assert measured.figures == {"t": 3.0}
    assert measured.floor_figures == {"t": 1.5}
    assert measured.ratio_of_medians == 2.0


def test_subject_and_floor_take_turns_in_going_first() -> None:
    order: list[str] = []

    def run(who: str) -> dict[str, float]:
        order.append(who)
        return {"t": 1.0}

    compare(3, "t", lambda: run("s"), lambda: run("f"))
    assert "".join(order) == "fssffs"


def test_quantiles() -> None:
    hundred = list(range(1, 101))
    assert [quantile(hundred, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert quantile([7], 0.5) == 7
    assert math.isnan(quantile([], 0.5))


def test_fairness() -> None:
    assert jain([5, 5, 5, 5]) == 1
    assert jain([4, 0, 0, 0]) == 0.25
    assert math.isnan(jain([0, 0]))


@pytest.mark.parametrize(
    ("turns", "count"),
    [
        ([(0, None, 1), (2, 3, 9)], 0),
        ([(0, 1, 5), (2, 3, 6)], 0),  # in order
        ([(2, 3, 5), (0, 1, 6)], 1),  # the second was in line when the first began to ask
        ([(0, 3, 5), (1, 2, 6)], 0),  # they asked at the same time
        ([(2, 3, 5), (6, 7, 8), (0, 1, 9)], 2),
        ([(2, None, 5), (0, 1, 6)], 1),  # barged in without waiting
    ],
)
def test_overtakes(turns: list[tuple[int, int | None, int]], count: int) -> None:
    assert overtakes(turns) == count


def test_goals() -> None:
    measured = Comparison(7, 0.9, 0.8, 1.2, 0.9, {"lost": 1.0})
    result = Result(
        "s", "c", "p", "us", "f", "t", measured, (Goal("ratio", 1.0), Goal("lost", 0.0))
    )
    assert [goal.figure for goal in result.missed()] == ["lost"]
    assert "goals: 1 of 2 met" in report.summary([result])
    assert "lost <= 0: MISSED" in "\n".join(report.table(report.record(result)))


def test_a_failure_in_a_child_is_not_a_figure() -> None:
    """In a process of its own: forking one with threads, as pytest may be, is frowned upon."""
    program = (
        "from bench.measure import in_child\n"
        "assert in_child(divmod, 7, 2) == (3, 1)\n"
        "in_child(int, 'no number')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 1
    assert "RuntimeError: builtins.int" in ran.stderr
    assert "invalid literal" in ran.stderr
