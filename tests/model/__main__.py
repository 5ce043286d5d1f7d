"""`python -m tests.model`: search worlds that are too large for CI (some minutes)."""

from __future__ import annotations

import time

from tests.model.redlock import Rules, World, search

WORLDS = [
    World(ends=3, crashes=1, skew=(2, 0, 0)),
    World(ends=4, crashes=2),
    World(ends=1, drops=2, skew=(2, 0, 0)),
    World(ends=2, restarts=1, skew=(2, 0, 0)),
    World(ends=1, drops=1, crashes=1, skew=(2, 0, 0)),
    World(ends=0, clients=3, drops=1, skew=(2, 0, 0)),
    World(ends=0, clients=3, crashes=1),
    World(ends=3, crashes=1, renewals=2, longer=2, fenced=False),
    World(ends=2, crashes=1, renewals=1, longer=1),
]


def main() -> None:
    for world in WORLDS:
        begun = time.monotonic()
        states, violation = search(world, Rules())
        print(f"{world}: {states} states in {time.monotonic() - begun:.0f} s")
        if violation is not None:
            raise SystemExit("\n".join([violation.what, *violation.trace]))


if __name__ == "__main__":
    main()
