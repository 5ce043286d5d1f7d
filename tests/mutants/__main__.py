"""Plant the known bugs, one after another, and show which test catches each.

python -m tests.mutants                      # all of them
python -m tests.mutants 05 lost-wake-up      # those whose file name contains one of these
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.mutants.run import mutants, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="parts of file names (default: every mutant)")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="at once (default: up to 2)"
    )
    arguments = parser.parse_args()
    wanted: list[str] = arguments.names
    chosen = [m for m in mutants() if not wanted or any(part in m.name for part in wanted)]
    if not chosen:
        parser.error(f"no mutant is called {' or '.join(wanted)}")
    return run(chosen, max(1, arguments.jobs))


if __name__ == "__main__":
    sys.exit(main())
