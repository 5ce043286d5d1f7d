"""The benchmarks work: each scenario runs, and what it writes has its fields. No timing is judged.

And the arithmetic behind the figures, where a mistake would make them pretty and wrong. Peers that
need a package do not take part: their environments come from a package index.

Over 400 lines: a list of cases, each read by itself, that share one quick run.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.__main__ import main
from bench.crew import SAME, Crew, crews, failures
from bench.entrants import Entrant, Field
from bench.peers import EVERY, PEERS, PROCESSES, TASKS, THREADS, envs
from bench.scenarios import SCENARIOS
from bench.servers import Servers
from bench.session import Case, Comparison, Goal, against_all, in_turns
from bench.stats import (
    Figures,
    Turn,
    contest,
    jain,
    latencies,
    overtakes,
    paired,
    quantile,
    summary,
)
from bench.stores import EMBEDDED, STORES, Store

from bench import plot, report
from holdfast.backends import schemes
from tests.rotation import EVERYTHING

ROOT = Path(__file__).resolve().parents[2]
STANDARD = [name for name, peer in PEERS.items() if not peer.requires]

CONTEST = {
    "changes per s",
    "us per change",
    "hand-over p50",
    "hand-over p99",
    "jain",
    "longest gap s",
    "overtakes",
    "overlaps",
    "CPU us per change",
}
FIGURES = {
    "uncontended": {"p50", "p99", "ops per s"},
    "abreast": {"p50", "p99", "ops per s"},
    "handover-threads": CONTEST,
    "handover-processes": CONTEST,
    "handover-tasks": CONTEST,
    "drain": {"hand-over p50", "hand-over p99", "all served ms", "overtakes"},
    "crowd": CONTEST,
    "waiting": {"CPU s", "CPU % of a core", "all served after s"},
    "crash": {"p50 ms", "p99 ms", "max ms"},
    "away": {"p50", "p99"},
    "imports": {"wall ms", "CPU ms", "modules"},
    "once": {"half have it ms", "p99 ms", "all have it ms"},
    "election": {"p50 ms", "p99 ms", "max ms"},
    "stripes": {"ops per s"},
    "held": {"threads", "bytes per lease", "traced bytes per lease", "acquire us", "lost"},
}
OURS = {  # what only holdfast knows
    **{name: {"store requests per change"} for name in FIGURES if name.startswith("handover")},
    "held": {
        "keeper threads",
        "store requests per s",
        "renew calls per round and 1000 leases",
        "largest batch",
        "renewal CPU s per round",
        "left over",
    },
}
NEVER = {"lost", "left over", "overtakes", "overlaps"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(store, id=store.name, marks=[pytest.mark.servers] if store.served else [])
        for store in STORES.values()
        if set(store.schemes) & set(schemes())
    ],
)
@pytest.mark.timeout(300)
def test_every_scenario_runs_and_says_what_it_measured(tmp_path: Path, store: Store) -> None:
    names = [name for name in STANDARD if PEERS[name].store == store.name] or ["none"]
    peers = [word for name in names for word in ("--peer", name)]
    apply = [name for name in SCENARIOS if name not in store.without]
    few = apply if EVERYTHING or not store.served else random.sample(apply, min(3, len(apply)))
    drawn = [name for name in apply if name in few]  # what kills a leader leaves something
    options = ("--store", store.name, "--quick", "--pairs", "1", *peers)
    ran = bench(*drawn, *options, "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    page = (tmp_path / "RESULTS.md").read_text()
    assert set(FIGURES) == set(SCENARIOS)
    for name in SCENARIOS:
        title = store.title(name)
        path = tmp_path / "results" / f"{title}.json"
        if name not in drawn:
            assert not path.exists()
            continue
        said = json.loads(path.read_text())
        assert {"command", "date", "machine", "python"} <= set(said)
        assert said["command"] in page
        assert f"## {title}" in page
        assert f"results/{title}.svg" in page
        ElementTree.fromstring((tmp_path / "results" / f"{title}.svg").read_text())
        assert said["cases"]
        for case in said["cases"]:
            assert case["scenario"] == title
            check(name, case)


def check(name: str, case: dict[str, Any]) -> None:
    assert case["case"]
    assert case["placement"]
    for label, figures in case["figures"].items():
        ours = label.startswith("holdfast")
        assert set(figures) >= FIGURES[name] | (OURS.get(name, set()) if ours else set()), label
        assert not figures.get("overlaps"), f"{label} did not exclude"
        if ours:
            assert {
                figure: figures[figure] for figure in NEVER & set(figures) if figures[figure]
            } == {}
        assert any(label.startswith(known) for known in case["versions"]), label
    for ratio in case["ratios"]:
        assert {ratio["subject"], ratio["against"]} <= set(case["figures"])
        assert ratio["lowest"] <= ratio["median"] <= ratio["highest"]
    for goal in case["goals"]:
        assert goal["subject"] in case["figures"]
        assert (goal["value"] is None) is (goal["met"] is None)


def test_scenarios_targets_and_peers_can_be_chosen() -> None:
    assert bench("--list").stdout.split() == list(SCENARIOS)
    wrong = bench("uncontendend")
    assert wrong.returncode == 2
    assert "no scenario 'uncontendend'" in wrong.stdout
    assert bench("--peer", "flok").returncode == 2
    chosen = bench("uncontended", "--quick", "--target", "memory://mine", "--peer", "flock")
    assert chosen.returncode == 0, chosen.stderr
    assert "sqlite" not in chosen.stdout.lower()
    assert "threading.Lock" not in chosen.stdout


def test_a_scenario_that_fails_is_said_and_the_others_run() -> None:
    broken = "sqlite:////proc/nowhere.db?request_timeout=0.2"
    ran = bench("crash", "held", "--quick", "--target", broken, "--peer", "flock")
    assert ran.returncode == 1
    assert "crash failed: holdfast sqlite://" in ran.stderr
    assert "held failed: holdfast sqlite://" in ran.stderr
    assert "goals: 0 of 0 met" in ran.stdout


def test_any_backend_that_a_module_registers_can_be_measured() -> None:
    arguments = ("--quick", "--pairs", "1", "--peer", "flock")
    program = (
        "import sys\n"
        "from bench.__main__ import main\n"
        "from tests.conformance.served import Server\n"
        "server = Server()\n"
        "target = f'served://{server.path}'\n"
        "sys.exit(main(['handover-processes', '--target', target,"
        f" '--import', 'tests.conformance.served', *{arguments!r}]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "holdfast served://" in ran.stdout
    assert "overtakes at most 0: 0, met" in ran.stdout


# -- workers and adapters --------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.fixture
def field(tmp_path: Path, servers: Servers) -> Field:
    return Field(tmp_path, servers, EMBEDDED, ["memory://test"], STANDARD)


def test_workers_need_nothing_but_the_standard_library_and_their_peer() -> None:
    modules = {peer.module for peer in EVERY.values() if not peer.requires}
    program = ";".join(
        ["import bench.worker", *(f"import bench.peers.{module}" for module in modules)]
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, '.'); {program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.servers] if STORES[peer.store].served else [])
        for name, peer in EVERY.items()
        if not peer.requires and peer.kinds != (TASKS,)
    ],
)
def test_every_adapter_takes_and_gives(field: Field, name: str) -> None:
    with Crew(field.floor(name)) as crew:
        assert crew.version
        crew.place(SAME)
        crew.ask("take", name="one")
        crew.ask("give", name="one")
        [taken] = crew.ask("cycles", name="one", seconds=0.001)
        assert taken
        assert all(nanoseconds > 0 for nanoseconds in taken)


@pytest.mark.parametrize("name", ["flock", "threading.Lock", "holdfast memory://"])
def test_waiters_stand_in_line_until_it_is_given(field: Field, name: str) -> None:
    known = {e.label: e for e in [*field.targets(), *field.peers(THREADS)]}
    with Crew(known[name]) as crew:
        crew.ask("take", name="one")
        crew.ask("stand", name="one", waiters=[0, 1])
        [given] = crew.ask("give", name="one")
        turns = [Turn(*turn) for turn in crew.ask("stood")[0]]
        assert {turn.waiter for turn in turns} == {0, 1}
        assert given < min(turn.got for turn in turns)
        assert contest(turns, 2, 0, time.monotonic_ns())["overlaps"] == 0


def test_a_failure_in_a_worker_is_not_a_figure(field: Field) -> None:
    with Crew(field.floor("flock")) as crew, pytest.raises(RuntimeError, match="no command"):
        crew.ask("nonsense")
    broken = Entrant("broken", "bench.peers.nowhere", "", sys.executable, (THREADS,))
    with pytest.raises(RuntimeError, match="No module named"):
        Crew(replace(broken, scheme="memory"))


def test_a_peer_that_fails_is_a_row_that_says_so(field: Field) -> None:
    broken = Entrant("broken", "bench.peers.nowhere", "", sys.executable, (THREADS,))
    flock = field.floor("flock")
    falling = replace(flock, label="falling")
    asked: list[str] = []

    def run(crew: Crew) -> Figures:
        asked.append(crew.entrant.label)
        if crew.entrant is falling and len(asked) > 2:
            crew.ask("nonsense")
        return {"p50": float(len(crew.ask("cycles", name="one", seconds=0.001)[0]))}

    with crews([flock, broken, falling]) as everybody:
        for crew in everybody:
            crew.place(SAME)
        runs = in_turns(3, everybody, run)
        failed = failures(everybody)
    assert [bool(found) for found in runs["flock"]] == [True] * 3
    assert runs["broken"] == [{}, {}, {}]
    assert [bool(found) for found in runs["falling"]] == [True, False, False]
    assert asked.count("falling") == 2
    case = report.record(
        Case(
            "x",
            "y",
            SAME,
            runs,
            against_all(["falling"], ["broken"], "p50", "flock"),
            (),
            {},
            failed,
        )
    )
    assert "No module named 'bench.peers.nowhere'" in case["failed"]["broken"]
    assert "no command" in case["failed"]["falling"]
    assert any("broken failed: " in line for line in report.table(case))
    said = report.page([{**report.conditions(""), "scenario": "x", "cases": [case]}])
    assert "| broken (failed: " in said


def test_a_worker_that_hangs_ends_itself(field: Field, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="has ended"), Crew(field.floor("flock")) as crew:
        crew.ask("cycles", name="one", seconds=60.0, limit=0.2)
    assert "Timeout" in capfd.readouterr().err


def test_a_peer_without_an_environment_is_left_out(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> str:
        raise envs.Missing("there is no index")

    monkeypatch.setattr("bench.entrants.python_of", refuse)
    field = Field(tmp_path, servers, EMBEDDED, ["memory://test"], ["filelock"])
    assert field.left_out == {"filelock": "there is no index"}
    assert field.peers(THREADS) == []


def test_memory_cannot_serve_processes(field: Field) -> None:
    assert field.targets(PROCESSES) == []
    assert [target.label for target in field.targets(TASKS)] == ["holdfast memory://"]


# -- arithmetic ------------------------------------------------------------------------------------


def test_ratios_are_of_pairs_and_the_median_is_given() -> None:
    ours: list[Figures] = [{"t": 2.0}, {"t": 30.0}, {"t": 3.0}]
    theirs: list[Figures] = [{"t": 1.0}, {"t": 10.0}, {"t": 1.5}]
    assert paired(ours, theirs, "t") == (2.0, 2.0, 3.0, 3)
    assert summary(ours) == {"t": 3.0}
    assert paired([{"t": 1.0}], [{"t": 0.0}], "t") is None  # nothing to divide by
    assert paired([{"t": 1.0}], [{}], "t") is None
    assert paired([{"t": math.nan}, {"t": 4.0}], [{"t": 1.0}, {"t": 2.0}], "t") == (2, 2, 2, 1)


def test_of_what_must_never_happen_the_worst_run_is_given() -> None:
    assert summary([{"overtakes": 0}, {"overtakes": 3}, {"overtakes": 0}]) == {"overtakes": 3}
    assert math.isnan(summary([{"t": math.nan}])["t"])


class Recorded(Crew):
    def __init__(self, label: str) -> None:
        self.entrant = Entrant(label, "", "", "", ())


def test_entrants_take_turns_in_going_first() -> None:
    order: list[str] = []

    def run(crew: Crew) -> Figures:
        order.append(crew.entrant.label)
        return {"t": float(len(order))}

    runs = in_turns(3, [Recorded("s"), Recorded("f"), Recorded("p")], run)
    assert "".join(order) == "sfppfssfp"
    assert runs["p"] == [{"t": 3.0}, {"t": 4.0}, {"t": 9.0}]


def test_quantiles() -> None:
    hundred = list(range(1, 101))
    assert [quantile(hundred, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert quantile([7], 0.5) == 7
    assert math.isnan(quantile([], 0.5))
    assert latencies([3000, 1000, 2000], "x ") == {"x p50": 2.0, "x p99": 3.0}


def test_fairness() -> None:
    assert jain([5, 5, 5, 5]) == 1
    assert jain([4, 0, 0, 0]) == 0.25
    assert math.isnan(jain([0, 0]))


def turns_of(*stamps: tuple[int, int | None, int]) -> Iterator[Turn]:
    for waiter, (began, queued, got) in enumerate(stamps):
        yield Turn(waiter, began, queued, got, got)


@pytest.mark.parametrize(
    ("stamps", "count"),
    [
        ([(0, None, 1), (2, 3, 9)], 0),
        ([(0, 1, 5), (2, 3, 6)], 0),  # in order
        ([(2, 3, 5), (0, 1, 6)], 1),  # the second was in line when the first began to ask
        ([(0, 3, 5), (1, 2, 6)], 0),  # they asked at the same time
        ([(2, 3, 5), (6, 7, 8), (0, 1, 9)], 2),
        ([(2, None, 5), (0, 1, 6)], 1),  # barged in without waiting
        ([(4, None, 5), (0, 1, 6), (2, 3, 7)], 1),  # past two: still one that overtook
        ([(0, 1, 2), (3, 4, 5)], 0),  # the other had had its turn
    ],
)
def test_overtakes(stamps: list[tuple[int, int | None, int]], count: int) -> None:
    assert overtakes(list(turns_of(*stamps))) == count


def test_a_contest() -> None:
    turns = [
        Turn(0, 0, None, 90, 95),  # before it counts
        Turn(1, 0, 10, 100, 200),  # 5 after 0 left
        Turn(1, 210, None, 220, 300),  # the same again: no change
        Turn(0, 100, 110, 310, 400),
        Turn(1, 300, 310, 1200, 1201),  # after it counts
    ]
    figures = contest(turns, 3, 100, 1100)
    assert figures["changes per s"] == 2 / 1000e-9
    assert figures["us per change"] == 0.5
    assert (figures["hand-over p50"], figures["hand-over p99"]) == (0.005, 0.010)
    assert figures["jain"] == jain([1, 2, 0])
    assert figures["longest gap s"] == 1000e-9  # of the third waiter, who had nothing at all
    assert figures["overtakes"] == 1  # the same again, while another stood in line
    assert figures["overlaps"] == 0
    assert contest([Turn(0, 0, None, 1, 5), Turn(1, 0, None, 4, 6)], 2, 0, 9)["overlaps"] == 1
    assert math.isnan(contest([], 1, 0, 9)["us per change"])


# -- reports ---------------------------------------------------------------------------------------


def sample() -> Case:
    runs: dict[str, list[Figures]] = {
        "us": [{"p50": 9.0, "lost": 1.0}, {"p50": 10.0, "lost": 0.0}],
        "floor": [{"p50": 10.0}, {"p50": 8.0}],
    }
    goals = [
        Goal("us", "p50", at_most=1.2, against="floor"),
        Goal("us", "lost", at_most=0),
        Goal("us", "p50", at_least=100),
        Goal("us", "p50", at_most=1, against="absent"),
    ]
    return Case("s", "c", "p", runs, [Comparison("us", "floor", "p50")], goals, {"us": "us 1"})


def test_goals() -> None:
    said = report.record(sample())
    assert [goal["met"] for goal in said["goals"]] == [True, False, False, None]
    assert [goal["value"] for goal in said["goals"]] == [1.075, 1.0, 9.5, None]
    assert [goal.get("missed by") for goal in said["goals"]] == [None, None, 0.905, None]
    assert "goals: 1 of 4 met" in report.summary([said])
    text = "\n".join(report.table(said))
    assert "lost at most 0: 1, MISSED" in text
    assert "p50 at most 1 x absent: -, not measured" in text
    assert "p50, lower is better; 0.9 to 1.25" in text


def test_who_is_compared_with_whom() -> None:
    found = against_all(["us"], ["a", "b"], "p50", "floor")
    said = " ".join(f"{c.subject}/{c.against}" for c in found)
    assert said == "us/floor us/a us/b a/floor b/floor"


def test_a_plot_has_a_bar_on_the_right_side_of_one() -> None:
    said = report.record(sample())
    drawing = ElementTree.fromstring(plot.drawn("s", [said]))
    [bar] = drawing.findall(".//{*}rect")
    [one] = [line for line in drawing.findall(".//{*}line") if line.get("class") == "one"]
    assert bar.get("class") == "worse"
    assert float(bar.get("x", 0)) == float(one.get("x1", 0))  # 1.075: to the right
    assert "us / floor" in "".join(drawing.itertext())
    light, dark = plot.drawn("s", []).split("@media (prefers-color-scheme: dark)")
    assert "background: #ffffff" in light  # a ground of its own: it may be opened by itself
    assert "background: #0d1117" in dark


def test_numbers_are_no_powers_of_ten() -> None:
    wanted = {
        0: "0", 1.0: "1", 0.5: "0.5", 222.4: "222", 999.6: "1 000", 2216.0: "2 220",
        12_345_678: "12 300 000", 0.000397: "0.000397", 0.0000443: "0.0000443", -2216: "-2 220",
    }  # fmt: skip
    assert {value: plot.number(value) for value in wanted} == wanted
    assert report.number(0.0000443) == "0.0000443"


def test_results_are_kept_beside_those_of_other_scenarios(tmp_path: Path) -> None:
    for name in ("one", "two"):
        report.write(tmp_path, name, f"python -m bench {name}", [report.record(sample())], 61.0)
    page = report.page(report.load(tmp_path, ["two", "one", "three"]))
    assert page.index("## two") < page.index("## one")
    assert "python -m bench two" in page
    assert "It took 61 s." in page
    assert "Measured in 2 minutes" in page
    assert "us 1" in page
    assert "2 of 8 are met, 4 are missed" in page
    assert page.index("| [two](#two) | c, p | us | p50 at least 100 | 9.5 | 90% |") < page.index(
        "| [one](#one) | c, p | us | lost at most 0 | 1 | - |"
    )


def test_what_is_measured_no_more_is_no_result(tmp_path: Path) -> None:
    for name in ("redlock-uncontended", "redlock-drain"):
        report.write(tmp_path, name, "python -m bench", [report.record(sample())], 61.0)
    picture = tmp_path / "results" / "redlock-uncontended.svg"
    picture.write_text("as an older version drew it")
    assert main(["--page", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "RESULTS.md").read_text()
    assert "## redlock-uncontended" in page
    assert "## redlock-drain" not in page
    assert ElementTree.fromstring(picture.read_text()) is not None  # drawn anew


def test_the_page_shows_the_last_soak_of_each_backend(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    soak = {
        "backend": "redis", **report.conditions("python -m tests.stress redis"), "seed": 7,
        "seconds": 60.5, "resets": 3, "kills": 4, "holds": 3000, "losses seen": 2, "writes": 5,
        "refused stale writes": 1, "gave up": 0, "unavailable": 0, "server": "redis-server 7",
        "connections now": 2, "unserved_max_ms": 12.5, "rate_below": 0.001, "violations": [],
    }  # fmt: skip
    for name in ("redis", "zookeeper"):
        path = tmp_path / "results" / f"soak-{name}.json"
        path.write_text(json.dumps({**soak, "backend": name}))
    page = report.page([], report.load_last(tmp_path, "soak"))
    rows = [line for line in page.splitlines() if "3000" in line]
    assert [row.split()[1] for row in rows] == ["redis", "zookeeper"]
    assert all("7: 4 kills, 3 resets |" in row and "| 0 | 1.0e-03 |" in row for row in rows)


def test_the_page_shows_the_kills(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    run = {
        "server": "redis", "version": "7.0", **report.conditions("x"),
        "tool": "once", "kills": 200, "seed": 7, "turns": 900, "seconds": 60, "longest": 2.01,
        "leases lost to pauses": 0, "meetings": 0, "violations": [],
    }  # fmt: skip
    (tmp_path / "results" / "kills-redis.json").write_text(json.dumps([run]))
    page = report.page([], (), report.load_last(tmp_path, "kills"))
    assert "| redis 7.0 | once | 200 | 900 | 0 | 2.01 | 60 |" in page
