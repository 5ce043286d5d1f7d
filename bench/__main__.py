"""python -m bench [SCENARIO ...] [--target URL ...] [--peer NAME ...] [--quick] [--pairs N]
                [--out DIRECTORY] [--import MODULE ...] [--list]

A full run prints a table of ratios and writes results/*.json, results/*.svg and RESULTS.md into
DIRECTORY (default: bench/). A quick run shows that every scenario works; its figures mean nothing,
and it writes only when a directory is given. A missed goal is printed, and is not an error; a
scenario that fails is, and the others still run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.entrants import DEFAULT_TARGETS, Field
from bench.peers import PEERS
from bench.scenarios import SCENARIOS
from bench.session import Plan

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenario", nargs="*", help="default: all")
    add(
        "--target",
        action="append",
        default=[],
        metavar="URL",
        help="measure holdfast over this store; {folder} is a temporary folder (default: those of "
        f"{' and '.join(DEFAULT_TARGETS)} that there are)",
    )
    add("--peer", action="append", default=[], choices=list(PEERS), help="default: all")
    add("--quick", action="store_true", help="a smoke run, in seconds")
    add("--pairs", type=int, help="pairs of runs for each ratio (7; quick: 2)")
    add("--out", type=Path, help="where to write (default: bench/)")
    add(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import it first: it makes the target's scheme known",
    )
    add("--list", action="store_true", help="the scenarios")
    said = parser.parse_args(arguments)
    unknown = [name for name in said.scenario if name not in SCENARIOS]
    if said.list or unknown:
        print("\n".join([f"no scenario {name!r}; there are:" for name in unknown] + [*SCENARIOS]))
        return 2 if unknown else 0
    pairs = said.pairs or (2 if said.quick else 7)
    if pairs < 1:
        parser.error("--pairs: at least one")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        field = Field(Path(folder), said.target, said.peer, said.imports)
        for name, why in field.left_out.items():
            print(f"{name} is left out: {why}", flush=True)
        plan = Plan(field, pairs, said.quick)
        out: Path | None = said.out or (None if said.quick else HERE)
        return _measure(plan, said.scenario or list(SCENARIOS), out, " ".join(arguments))


def _measure(plan: Plan, names: list[str], out: Path | None, arguments: str) -> int:
    began = time.monotonic()
    everything: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in names:
        cases: list[dict[str, Any]] = []
        try:
            for case in SCENARIOS[name](plan):
                cases.append(report.record(case))
                print("\n".join(report.table(cases[-1])), flush=True)
        except RuntimeError as error:  # a worker's; the others' figures are worth having
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        if not cases:
            print(f"{name}: no target that it applies to")
        elif out is not None:
            report.write(out, name, f"python -m bench {arguments}".rstrip(), cases)
        everything += cases
    print(report.summary(everything))
    print(f"{time.monotonic() - began:.0f} s")
    if out is not None:
        (out / "RESULTS.md").write_text(report.page(report.load(out, list(SCENARIOS))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
