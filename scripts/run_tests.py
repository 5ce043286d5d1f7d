"""Run the test suite: here, and on the machine's other interpreters. `make test`, `make quick`.

    python scripts/run_tests.py all [pytest arguments]
    python scripts/run_tests.py quick [pytest arguments]

`all` is the suite on this interpreter, real servers included (of what takes long each run draws a
part, unless HOLDFAST_EVERYTHING=1 says otherwise: tests/rotation.py); beside it, at the same time,
the tests that need neither servers nor minutes on every other supported interpreter that
`scripts/find-python --all` finds, each in an environment of its own (.venv-3.12, ...); what they
print comes afterwards. (Tests mostly wait; and a machine with other things to do is what locks live
on.) The last line sums up, as pytest does.
Exit status: 0 when every run passed, else 1; 130 when interrupted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("-m", "not servers and not slow")
BESIDE = ("-n", "10", "--dist", "loadscope")
"""Several at a time, for they mostly wait; a class or module with its servers is one worker's."""
PORTABLE = ("tests/unit", "tests/conformance", "tests/faults")
"""What runs on the other interpreters: the library itself, not its packaging and its servers."""
SPARINGLY = {"HOLDFAST_SPARINGLY": "1"}
"""More is left to other runs there (tests/rotation.py)."""


def main(kind: str, arguments: list[str]) -> int:
    began = time.monotonic()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    runs: dict[str, Counter[str]] = {}
    beside = [
        threading.Thread(target=run_other, args=(version, python, arguments, runs))
        for version, python in (others(here) if kind == "all" else ())
    ]
    for thread in beside:
        thread.start()
    quick = QUICK if kind == "quick" else ()
    mine = run(here, Path(sys.executable), [*BESIDE, *quick, *arguments])
    for thread in beside:
        thread.join()
    for version in sorted(runs):
        say(f"Python {version}")
        print(log_of(version).read_text(), flush=True)
    runs = {here: mine, **runs}
    total = sum(runs.values(), Counter[str]())
    each = ", ".join(f"Python {version}: {count['passed']}" for version, count in runs.items())
    print(f"passed on {each}")
    bad = total["failed"] + total["errors"]
    tail = f", {total['errors']} errors" if total["errors"] else ""
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    seconds = time.monotonic() - began
    print(f"{total['passed']} passed, {total['failed']} failed{tail}{skipped} in {seconds:.1f}s")
    return 1 if bad else 0


def run_other(
    version: str, python: str, arguments: list[str], runs: dict[str, Counter[str]]
) -> None:
    runs[version] = Counter(errors=1)
    directory = ROOT / f".venv-{version}"
    log_of(version).parent.mkdir(exist_ok=True)
    with log_of(version).open("w") as log:
        made = subprocess.run(
            ["scripts/venv", directory.name, "test", python],
            cwd=ROOT, check=False, stdout=log, stderr=log,
        )  # fmt: skip
        if made.returncode == 0:
            paths = [path for path in PORTABLE if any((ROOT / path).rglob("test_*.py"))]
            own = directory / "bin" / "python"
            runs[version] = run(
                version, own, ["-n", "3", *BESIDE[2:], *QUICK, *paths, *arguments], log, SPARINGLY
            )


def log_of(version: str) -> Path:
    return ROOT / "build" / f"tests-{version}.log"


def others(here: str) -> list[tuple[str, str]]:
    """The other interpreters, (version, path)."""
    listing = subprocess.run(
        ["scripts/find-python", "--all"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = [(version, path) for version, _, path in map(_split, listing.stdout.splitlines())]
    return [(version, path) for version, path in found if version != here]


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def run(
    version: str,
    python: Path,
    arguments: list[str],
    log: IO[str] | None = None,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Counter[str]:
    """One run of pytest, its output passed on as it comes; the counts of its outcomes."""
    report = ROOT / "build" / f"tests-{version}.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", f"--junit-xml={report}", *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, env={**defaults, **os.environ},
        stdin=subprocess.DEVNULL, check=False, stdout=log, stderr=log,
    )  # fmt: skip
    if ended.returncode not in (0, 1) or not report.exists():
        say(f"pytest on Python {version} ended with status {ended.returncode}")
        return Counter(errors=1)
    count: Counter[str] = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        for tag, outcome in (("error", "errors"), ("failure", "failed"), ("skipped", "skipped")):
            if tag in outcomes:
                count[outcome] += 1
                break
        else:
            count["passed"] += 1
    if ended.returncode and not (count["failed"] or count["errors"]):
        count["errors"] += 1  # pytest was unhappy about something that is not a test
    return count


def say(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("all", "quick"):
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
