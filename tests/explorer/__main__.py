"""Explore for as long as you like, or look at one schedule.

python -m tests.explorer --schedules 100000 --seed 7
python -m tests.explorer --replay r4711
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.explorer.explore import CASES, random_schedule, replay, systematic
from tests.explorer.history import Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000, help="how many (default 20000)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first random schedule")
    parser.add_argument("--replay", metavar="NAME", help="show one schedule, as a failure named it")
    arguments = parser.parse_args()
    if arguments.replay:
        return show(arguments.replay)
    began = time.monotonic()
    done = steps = faults = 0
    share = arguments.schedules // 4
    for name, report in schedules(arguments.seed, arguments.schedules - share, share):
        done, steps, faults = done + 1, steps + report.steps, faults + len(report.faults)
        if report.violations:
            print(f"\n{name}: {report.violations[0]}\nreplay: make explore REPLAY={name}")
            return 1
        if done % 1000 == 0 and sys.stderr.isatty():
            print(f"\r{done} schedules, {faults} faults", end="", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"{done} schedules, {steps} steps, {faults} faults, 0 violations in {seconds:.1f} s")
    return 0


def schedules(seed: int, drawn: int, ordered: int):  # type: ignore[no-untyped-def]
    for number in range(seed, seed + drawn):
        yield f"r{number}", random_schedule(number)
    for case in CASES:
        yield from systematic(case, ordered // len(CASES))


def show(name: str) -> int:
    report: Report = replay(name)
    print("\n".join(report.trace))
    print("\n".join(str(record) for record in report.records))
    print("\n".join(f"VIOLATION {line}" for line in report.violations) or "no violation")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
