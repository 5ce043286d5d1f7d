"""One candidate of an election, which leads until it is killed.

    python -m bench.candidate URL NAME TTL MODULE...

Partner: `scenarios/election.py`. Says `ready` when it is about to ask.
"""

from __future__ import annotations

import importlib
import os
import sys

import holdfast

__all__ = ["main"]


def main(url: str, name: str, ttl: str, *imports: str) -> None:
    for module in imports:
        importlib.import_module(module)
    with holdfast.connect(url) as locks:
        print("ready", flush=True)

        def lead(leadership: holdfast.Leadership) -> None:
            leadership.lost.wait()

        locks.election(name, ttl=float(ttl)).run_when_leader(lead, value=os.getpid())


if __name__ == "__main__":
    main(*sys.argv[1:])
