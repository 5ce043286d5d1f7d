"""python -m bench [SCENARIO ...] [--quick] [--pairs N] [--out DIRECTORY] [--list]

A full run prints a table of ratios and writes results/*.json and RESULTS.md into DIRECTORY
(default: bench/). A quick run shows that every scenario works; its figures mean nothing, and it
writes only when a directory is given. A missed goal is printed, and is not an error.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from bench import report
from bench.measure import Plan, Result
from bench.scenarios import SCENARIOS

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", help="default: all")
    parser.add_argument("--quick", action="store_true", help="a smoke run, in seconds")
    parser.add_argument("--pairs", type=int, help="pairs of runs for each ratio (7; quick: 2)")
    parser.add_argument("--out", type=Path, help="where to write (default: bench/)")
    parser.add_argument("--list", action="store_true", help="the scenarios")
    said = parser.parse_args(arguments)
    unknown = [name for name in said.scenario if name not in SCENARIOS]
    if said.list or unknown:
        print("\n".join([f"no scenario {name!r}; there are:" for name in unknown] + [*SCENARIOS]))
        return 2 if unknown else 0
    pairs = said.pairs or (2 if said.quick else 7)
    if pairs < 1:
        parser.error("--pairs: at least one")
    out: Path | None = said.out or (None if said.quick else HERE)
    command = " ".join(["python -m bench", *arguments])
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # losses are counted, not told
    began = time.monotonic()
    everything: list[Result] = []
    for name in said.scenario or SCENARIOS:
        results: list[Result] = []
        for result in SCENARIOS[name](Plan(pairs, said.quick)):
            print("\n".join(report.table(report.record(result))), flush=True)
            results.append(result)
        if out is not None:
            report.write(out, name, command, pairs, results)
        everything += results
    print(report.summary(everything))
    print(f"{time.monotonic() - began:.0f} s")
    if out is not None:
        (out / "RESULTS.md").write_text(report.page(report.load(out, list(SCENARIOS))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
