"""What was measured, for people (a table, RESULTS.md with plots) and for programs (JSON).

Contract: `bench/results/NAME.json` has the figures of the scenario's last full run, together with
the command, date, machine, Python and versions that gave them, and NAME.svg its ratios. RESULTS.md
is made from all of these files, so measuring one scenario anew does not lose the others. A figure
that does not exist is null in JSON and a dash in text.
Partner: `bench/plot.py` draws.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import plot
from bench.session import Case

__all__ = ["draw", "faults_of", "load", "load_last", "page", "record", "summary", "table", "write"]


def conditions(command: str) -> dict[str, Any]:
    """Without these a figure means nothing."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release().partition('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def record(case: Case) -> dict[str, Any]:
    """One case as JSON has it."""
    ratios: list[dict[str, Any]] = []
    for said in case.comparisons:
        ratio = case.ratio(said.subject, said.against, said.figure)
        if ratio is not None:
            ratios.append(
                {
                    "subject": said.subject,
                    "against": said.against,
                    "figure": said.figure,
                    "better": "higher" if said.higher_is_better else "lower",
                    **ratio._asdict(),
                }
            )
    goals: list[dict[str, Any]] = []
    for goal in case.goals:
        value = case.value(goal)
        met = None if value is None else goal.met(value)
        goals.append({"subject": goal.subject, "goal": str(goal), "value": value, "met": met})
        if value is not None and not met:
            goals[-1]["missed by"] = goal.missed_by(value)
    figures = {
        label: {name: None if math.isnan(value) else value for name, value in figures.items()}
        for label, figures in case.figures().items()
    }
    return {
        "scenario": case.scenario,
        "case": case.case,
        "placement": case.placement,
        "pairs": max(len(runs) for runs in case.runs.values()),
        "figures": figures,
        "ratios": ratios,
        "goals": goals,
        "versions": case.versions,
        **({"failed": case.failed} if case.failed else {}),
    }


def write(
    directory: Path, scenario: str, command: str, cases: Sequence[dict[str, Any]], seconds: float
) -> None:
    results = directory / "results"
    results.mkdir(parents=True, exist_ok=True)
    took = {"scenario": scenario, "seconds": round(seconds, 1)}
    said = {**conditions(command), **took, "cases": cases}
    (results / f"{scenario}.json").write_text(json.dumps(said, indent=1) + "\n")
    (results / f"{scenario}.svg").write_text(plot.drawn(scenario, cases))


def draw(directory: Path, runs: Sequence[dict[str, Any]]) -> None:
    """The pictures of stored runs anew."""
    for run in runs:
        picture = directory / "results" / f"{run['scenario']}.svg"
        picture.write_text(plot.drawn(run["scenario"], run["cases"]))


def load(directory: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """The stored runs, in the registry's order."""
    paths = [directory / "results" / f"{name}.json" for name in order]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def load_last(directory: Path, kind: str) -> list[Any]:
    """The last of each backend, as `make soak` or `make kills` left it."""
    paths = sorted((directory / "results").glob(f"{kind}-*.json"))
    return [json.loads(path.read_text()) for path in paths]


# -- text ------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 1000 else plot.number(value)


def _range(ratio: dict[str, Any]) -> str:
    if ratio["pairs"] < 2:
        return "-"
    return f"{number(ratio['lowest'])} to {number(ratio['highest'])}"


def _verdict(goal: dict[str, Any]) -> str:
    met: bool | None = goal["met"]
    return {True: "met", False: "MISSED", None: "not measured"}[met]


def table(case: dict[str, Any]) -> Iterator[str]:
    """For the terminal."""
    yield f"{case['scenario']}: {case['case']}, {case['placement']}"
    for ratio in case["ratios"]:
        yield (
            f"  {ratio['subject']:30} {number(ratio['median']):>7} x {ratio['against']:24}"
            f" {ratio['figure']}, {ratio['better']} is better; {_range(ratio)}"
        )
    for label, figures in case["figures"].items():
        said = "; ".join(f"{name} {number(value)}" for name, value in figures.items())
        yield f"    {label}: {said}"
    for label, why in case.get("failed", {}).items():
        yield f"    {label} failed: {why}"
    for goal in case["goals"]:
        yield (
            f"  goal, {goal['subject']}: {goal['goal']}: {number(goal['value'])}, {_verdict(goal)}"
        )


def summary(cases: Sequence[dict[str, Any]]) -> str:
    goals = [(case, goal) for case in cases for goal in case["goals"]]
    met = sum(goal["met"] is True for _, goal in goals)
    return "\n".join(
        [
            f"goals: {met} of {len(goals)} met",
            *(
                f"{_verdict(goal)}: {case['scenario']}, {case['case']}, {case['placement']},"
                f" {goal['subject']}: {goal['goal']}: {number(goal['value'])}"
                for case, goal in goals
                if goal["met"] is not True
            ),
        ]
    )


def page(
    runs: Sequence[dict[str, Any]],
    soaks: Sequence[dict[str, Any]] = (),
    kills: Sequence[Sequence[dict[str, Any]]] = (),
) -> str:
    lines = [
        "# Results",
        "",
        "Generated by `make bench`; do not edit. What each scenario does, and how to read the",
        "ratios: [how to benchmark](../docs/how-to/benchmark.md). Times are in microseconds unless",
        "a name says otherwise, and only the ratios carry over to another machine.",
    ]
    minutes = sum(run.get("seconds", 0) for run in runs) / 60
    lines += ["", f"Measured in {minutes:.0f} minutes; the soaks and kills at the end took theirs."]
    lines += _goals(runs)
    for run in runs:
        lines += ["", *_section(run)]
    if soaks:
        lines += ["", *_soaked(soaks)]
    if kills:
        lines += ["", *_killed(kills)]
    return "\n".join(lines) + "\n"


def _goals(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was aimed at and missed, before all the rest."""
    goals = [(run, case, goal) for run in runs for case in run["cases"] for goal in case["goals"]]
    if not goals:
        return
    met, missed = (sum(goal["met"] is said for *_, goal in goals) for said in (True, False))
    yield from ("", "## Goals", "")
    yield f"{met} of {len(goals)} are met, {missed} are missed: these. What is behind each:"
    why = "../docs/how-to/benchmark.md#goals-that-are-missed-and-why"
    yield f"[goals that are missed, and why]({why})."
    yield from ("", "| scenario | case | who | goal | is | missed by |", "| --- " * 6 + "|")
    for run, case, goal in goals:
        if goal["met"] is False:
            by = goal.get("missed by")
            yield (
                f"| [{run['scenario']}](#{run['scenario']}) | {_where(case)} | {goal['subject']} "
                f"| {goal['goal']} | {number(goal['value'])} "
                f"| {'-' if by is None else f'{by:.0%}'} |"
            )


def _section(run: dict[str, Any]) -> Iterator[str]:
    cases = run["cases"]
    pairs = max(case["pairs"] for case in cases)
    versions = sorted({version for case in cases for version in case["versions"].values()})
    yield f"## {run['scenario']}"
    yield ""
    yield (
        f"`{run['command']}` on {run['date']}, {run['python']}, {run['machine']}; "
        + (f"{pairs} pairs. " if pairs > 1 else "one run of each, so no spread is known. ")
        + (f"It took {run['seconds']:.0f} s. " if "seconds" in run else "")
        + f"Measured: {', '.join(versions)}."
    )
    yield ""
    yield f"![ratios of {run['scenario']}](results/{run['scenario']}.svg)"
    goals = [(case, goal) for case in cases for goal in case["goals"]]
    if goals:
        yield from ("", "| goal | case | who | value | |", "| --- | --- | --- | --- | --- |")
        for case, goal in goals:
            yield (
                f"| {goal['goal']} | {_where(case)} | {goal['subject']} "
                f"| {number(goal['value'])} | {_verdict(goal)} |"
            )
    yield from ("", "| case | who | is | x whom | range | of |", "| --- " * 6 + "|")
    for case in cases:
        for ratio in case["ratios"]:
            yield (
                f"| {_where(case)} | {ratio['subject']} | {number(ratio['median'])} "
                f"| {ratio['against']} | {_range(ratio)} "
                f"| {ratio['figure']} ({ratio['better']} is better) |"
            )
    names = list(
        dict.fromkeys(name for case in cases for who in case["figures"].values() for name in who)
    )
    yield from ("", f"| case | who | {' | '.join(names)} |", f"{'| --- ' * (len(names) + 2)}|")
    for case in cases:
        for label, figures in case["figures"].items():
            cells = [number(figures.get(name)) for name in names]
            why = case.get("failed", {}).get(label)
            failed = f" (failed: {why.replace('|', '/')})" if why else ""
            yield f"| {_where(case)} | {label}{failed} | {' | '.join(cells)} |"


NOT_FAULTS = {
    "seed", "seconds", "holds", "losses seen", "writes", "refused stale writes", "gave up",
    "unavailable", "rate_below", "of them alive", "commands since its last start",
}  # fmt: skip
"""Numbers of a soak that count something else."""


def faults_of(soak: dict[str, Any]) -> dict[str, int]:
    return {
        name: count
        for name, count in soak.items()
        if isinstance(count, int) and name not in NOT_FAULTS and not name.endswith(" now")
    }


def _soaked(soaks: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## soaks"
    yield ""
    yield "Holds under random faults of clients, network and server: `make soak BACKEND=redis`. A"
    yield "violation is two who believed to hold at once, a token that did not grow, a stale write"
    yield "that was accepted, somebody who was not served in time, or anything left behind."
    names = ["backend", "holds", "violations", "rate below (95 %)", "faults", "losses seen",
             "stale writes refused", "longest unserved ms", "seconds", "when and how"]  # fmt: skip
    yield from ("", f"| {' | '.join(names)} |", f"{'| --- ' * len(names)}|")
    for soak in soaks:
        faults = faults_of(soak)
        cells = [
            f"{soak['backend']} ({soak['server']})" if "server" in soak else soak["backend"],
            number(soak["holds"]),
            number(len(soak["violations"])),
            f"{soak['rate_below']:.1e}",
            f"{sum(faults.values())}: "
            + ", ".join(f"{count} {name}" for name, count in sorted(faults.items())),
            number(soak["losses seen"]),
            number(soak["refused stale writes"]),
            number(soak["unserved_max_ms"]),
            number(soak["seconds"]),
            f"{soak['date']}, `{soak['command']}`, seed {soak['seed']}; {soak['machine']}",
        ]
        yield f"| {' | '.join(cells)} |"


def _killed(records: Sequence[Sequence[dict[str, Any]]]) -> Iterator[str]:
    yield "## kills"
    yield ""
    yield "kill -9 at random moments inside each tool: `make kills BACKEND=redis`. A violation is"
    yield "two who hold and meet, somebody who waits for ever, or anything left behind. Where a"
    yield "holder was killed, the next one goes on when its lease is over: as long as the longest."
    names = ["server", "tool", "kills", "uses", "violations", "longest until somebody got on, s",
             "seconds", "when and how"]  # fmt: skip
    yield from ("", f"| {' | '.join(names)} |", f"{'| --- ' * len(names)}|")
    for run in itertools.chain.from_iterable(records):
        cells = [
            f"{run['server']} {run['version']}",
            run["tool"],
            number(run["kills"]),
            number(run["turns"]),
            number(len(run["violations"])),
            number(run["longest"]),
            number(run["seconds"]),
            f"{run['date']}, `{run['command']}`, seed {run['seed']}",
        ]
        yield f"| {' | '.join(cells)} |"


def _where(case: dict[str, Any]) -> str:
    return f"{case['case']}, {case['placement']}"
