"""What `import holdfast` costs over a bare interpreter: processor and wall time, modules.

Every run is a new interpreter, isolated, so that nothing but the standard library and holdfast is
on its way; the files are in the kernel's cache after the first. Neither a store nor a peer takes
part, so this is measured once, with the embedded store.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator

import holdfast
from bench.session import Case, Comparison, Goal, Plan
from bench.stats import Figures

__all__ = ["run"]

RUNS = 41
"""Interpreters for each figure, of which the median counts."""
LIMIT_MS = 60.0
IMPORTS = ("holdfast", "asyncio")
"""asyncio stands beside it as a measure that everybody knows."""
PROGRAM = """\
import sys, time
before, wall, cpu = len(sys.modules), time.perf_counter(), time.process_time()
import {name}
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
print(wall * 1e3, cpu * 1e3, len(sys.modules) - before)
"""


def run(plan: Plan) -> Iterator[Case]:
    amount = int(plan.amount(RUNS, 3))
    runs: dict[str, list[Figures]] = {name: [] for name in IMPORTS}
    for _ in range(amount):
        for name in IMPORTS:
            runs[name].append(_once(name))
    yield Case(
        "imports",
        "over bare Python",
        "not pinned",
        runs,
        [Comparison("holdfast", "asyncio", "CPU ms")],
        [Goal("holdfast", "wall ms", at_most=LIMIT_MS)],
        {
            "holdfast": f"holdfast {holdfast.__version__}",
            "asyncio": f"CPython {platform.python_version()}",
        },
    )


def _once(name: str) -> Figures:
    ran = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM.format(name=name)],
        check=True,
        capture_output=True,
        text=True,
    )
    wall, cpu, modules = map(float, ran.stdout.split())
    return {"wall ms": wall, "CPU ms": cpu, "modules": modules}
