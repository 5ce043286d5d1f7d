"""Plants each mutant in a copy of the tree and runs the tests that are expected to catch it.

Contract: the project's own files are never touched. The same tests must pass on the unmutated copy
first, or nothing is shown by their failing. A mutant is caught when one of its tests fails or hangs
(each test has a time limit); a patch that does not apply, or breaks more than it says, is an error.

A patch begins with lines `# law: ...`, `# breaks: ...` and, once or more, `# caught-by: <test id>`;
then comes a unified diff against the repository's root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.mutants.witness import COPY, VERDICT

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).resolve().parent

HANG = 15
"""Seconds after which a test hangs. The slowest of them needs two when nothing is wrong."""

LIMIT = 120
"""Seconds for all tests of one mutant, should even the limit for each test not end them."""

HEADER = re.compile(r"# (law|breaks|caught-by): (.+)")


@dataclass(frozen=True)
class Mutant:
    name: str
    path: Path
    law: str
    breaks: str
    tests: tuple[str, ...]

    @staticmethod
    def read(path: Path) -> Mutant:
        header: dict[str, list[str]] = {"law": [], "breaks": [], "caught-by": []}
        for line in path.read_text().splitlines():
            if line.startswith("--- "):
                break
            if found := HEADER.fullmatch(line):
                header[found[1]].append(found[2])
        law, breaks = " ".join(header["law"]), " ".join(header["breaks"])
        return Mutant(path.stem, path, law, breaks, tuple(header["caught-by"]))


@dataclass(frozen=True)
class Verdict:
    caught: bool
    by: str  # the test; or why there is none
    seconds: float
    reason: str = ""


def _number(patch: Path) -> int:
    return int(patch.name.partition("-")[0])


def mutants() -> list[Mutant]:
    return [Mutant.read(path) for path in sorted(PATCHES.glob("[0-9]*-*.patch"), key=_number)]


def run(chosen: Sequence[Mutant], jobs: int) -> int:
    """The table; 0 if every mutant was caught."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as directory:
        clean = Path(directory) / "clean"
        copy_tree(ROOT, clean)  # once: somebody may be editing
        with ThreadPoolExecutor(jobs) as pool:
            tests = sorted({test for mutant in chosen for test in mutant.tests})
            shares = [tests[n::jobs] for n in range(jobs) if tests[n::jobs]]
            for verdict in pool.map(partial(unmutated, clean), shares):
                if verdict.by:
                    say(f"without any mutant: {verdict.by}\n{verdict.reason}")
                    return 1
            seconds = time.monotonic() - began
            say(f"{len(tests)} selections of tests pass on the unmutated copy ({seconds:.0f} s)\n")
            width = max(len(mutant.name) for mutant in chosen)
            law = max(len(mutant.law) for mutant in chosen)
            say(f"{'mutant':{width}} | {'law':{law}} | {'caught by':100} | seconds")
            survivors: list[str] = []
            for mutant, verdict in zip(
                chosen, pool.map(partial(planted, clean), chosen), strict=True
            ):
                by = verdict.by if verdict.caught else f"NOT CAUGHT: {verdict.by}"
                say(
                    f"{mutant.name:{width}} | {mutant.law:{law}} | {by:100} | {verdict.seconds:.1f}"
                )
                if not verdict.caught:
                    survivors.append(mutant.name)
                    say(f"    {mutant.breaks}\n{verdict.reason}")
    seconds = time.monotonic() - began
    say(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants caught in {seconds:.0f} s")
    if survivors:
        say(f"not caught: {', '.join(survivors)}")
    return 1 if survivors else 0


def unmutated(clean: Path, tests: list[str]) -> Verdict:
    """The tests without a mutant; a reason if they do not pass."""
    with copied(clean) as copy:
        verdict = tested(copy, tests)
    if verdict.caught:
        return verdict
    return Verdict(False, "" if verdict.by == SURVIVED else verdict.by, 0, verdict.reason)


def planted(clean: Path, mutant: Mutant) -> Verdict:
    with copied(clean) as copy:
        applied = apply(mutant.path, copy)
        if applied.returncode != 0:
            return Verdict(False, "the patch does not apply", 0, applied.stderr)
        return tested(copy, mutant.tests)


def apply(patch: Path, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`git apply`, also where there is no repository."""
    return subprocess.run(
        ["git", "apply", *options, str(patch)],
        cwd=root,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


SURVIVED = "every test passed"


def tested(copy: Path, tests: Sequence[str]) -> Verdict:
    """Run these tests on the copy, up to the first that fails."""
    began = time.monotonic()
    verdict = copy / "verdict.json"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "tests.mutants.witness"]
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--timeout={HANG}", "--timeout-method=signal", *tests]
    # The copy comes before the editable install, which is behind everything in PYTHONPATH.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy)])}
    environment |= {COPY: str(copy), VERDICT: str(verdict)}
    environment.pop("PYTEST_ADDOPTS", None)
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    seconds = time.monotonic() - began
    if verdict.exists():
        seen = json.loads(verdict.read_text())
        by = seen["test"].removeprefix("tests/") + (" (hangs)" if seen["hang"] else "")
        return Verdict(True, by, seconds, seen["reason"])
    if process.returncode == -signal.SIGKILL:
        return Verdict(True, f"no test came to an end within {LIMIT} s (hangs)", seconds, output)
    if process.returncode == 0:
        return Verdict(False, SURVIVED, seconds)
    return Verdict(False, f"pytest ended with status {process.returncode}", seconds, output)


@contextmanager
def copied(clean: Path) -> Iterator[Path]:
    copy = Path(tempfile.mkdtemp(prefix="copy-", dir=clean.parent))
    try:
        copy_tree(clean, copy)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def copy_tree(source: Path, target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("src", "docs", "tests"):
        shutil.copytree(source / part, target / part, ignore=ignore)
    shutil.copy2(source / "pyproject.toml", target)


def say(text: str) -> None:
    print(text.rstrip(), flush=True)
