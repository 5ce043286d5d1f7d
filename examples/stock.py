"""A shop sells a stock of 100, each piece once, from one shelf, from two and from ten.

    python examples/stock.py                        # a file of its own, as the store
    python examples/stock.py redis://localhost

Buyers are processes. A sale reads how many pieces a shelf has, takes the money (which lasts a few
milliseconds) and writes one less: two at the same shelf would sell the same piece. With one lock
they all wait for one another; with a lock for each shelf, whoever finds one free sells. When that
shelf is empty, the buyer looks at all of them at once, and only then goes home.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from multiprocessing.pool import Pool
from pathlib import Path

import holdfast

STOCK, BUYERS, PAYING = 100, 4, 0.004


def sell_from(shelf: Path) -> bool:
    """One piece, if there is one. Not safe without a lock: that is the point."""
    left = int(shelf.read_text())
    if left == 0:
        return False
    time.sleep(PAYING)
    shelf.write_text(str(left - 1))
    return True


def sell(stripes: holdfast.Stripes, shelves: list[Path]) -> bool:
    with stripes.any() as lease:
        if sell_from(shelves[lease.stripe]):
            return True
    with stripes.all():
        return any(sell_from(shelf) for shelf in shelves)


def buyer(url: str, shelves: list[Path]) -> int:
    """Buys until nothing is left; how much that was."""
    bought = 0
    with holdfast.connect(url) as locks:
        stripes = locks.stripes("stock:77", len(shelves), timeout=60)
        while sell(stripes, shelves):
            bought += 1
    return bought


def open_shop(pool: Pool, url: str, folder: Path, count: int) -> None:
    shelves = [folder / f"shelf-{number}-of-{count}" for number in range(count)]
    for number, shelf in enumerate(shelves):
        shelf.write_text(str(len(range(number, STOCK, count))))
    began = time.monotonic()
    bought = pool.starmap(buyer, [(url, shelves)] * BUYERS, chunksize=1)
    seconds = time.monotonic() - began
    left = sum(int(shelf.read_text()) for shelf in shelves)
    print(f"{count:2} shelves: {sum(bought)} sold, {left} left, {seconds:.1f} s, by {bought}")
    if (sum(bought), left) != (STOCK, 0):
        raise SystemExit("that is not what was there")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, context.Pool(BUYERS) as pool:
        pool.map(time.sleep, [0.1] * BUYERS, chunksize=1)  # everybody is here
        folder = Path(name)
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite://{folder}/locks.db"
        for count in (1, 2, 10):
            open_shop(pool, url, folder, count)


if __name__ == "__main__":
    main()
