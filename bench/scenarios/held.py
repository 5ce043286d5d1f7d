"""Many leases held by one client and renewed: threads, requests, memory and CPU for each of them.

What is compared is one lease among many with one lease among a thousand: the cost of a lease must
not depend on how many others there are. Each run is a process of its own; counts and memory do not
wobble, so each size is run once.
"""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator

import holdfast
from bench import counted
from bench.measure import (
    FREE,
    Comparison,
    Figures,
    Goal,
    Plan,
    Result,
    in_child,
    rss,
)

__all__ = ["run"]

TTL, RENEW = 60.0, 5.0
SIZES = (1_000, 10_000, 100_000)
QUICK = (100, 200)

GOALS = (
    Goal("keeper threads", 1),
    Goal("renew calls per round and 1000 leases", 3),
    Goal("bytes per lease", 3 * 1024),
    Goal("lost", 0),
    Goal("left over", 0),
)


def run(plan: Plan) -> Iterator[Result]:
    ttl, renew = (5.0, 0.1) if plan.quick else (TTL, RENEW)
    few: Figures = {}
    for size in QUICK if plan.quick else SIZES:
        figures = in_child(hold, size, ttl, renew, 2)
        figures["traced bytes per lease"] = in_child(traced, min(size, 10_000))
        few = few or figures
        key = "renewal CPU us per lease"
        ratio = figures[key] / few[key]
        # A few leases fit badly into whole calls: batching is claimed for thousands of them.
        goals = GOALS if size >= 1000 else GOALS[3:]
        yield Result(
            "held",
            f"{size} leases",
            FREE,
            "holdfast memory://",
            "" if figures is few else "the fewest leases",
            key,
            Comparison(1, ratio, ratio, ratio, ratio, figures, few)
            if figures is not few
            else Comparison(1, figures=figures),
            goals,
        )


def hold(size: int, ttl: float, renew: float, rounds: int) -> Figures:
    """Acquire so many, keep them for some rounds of renewal, release them."""
    locks, counts = counted.connect("memory://held")
    threads = threading.active_count()
    memory = rss()
    started = time.perf_counter()
    kept = [locks.lock(f"job:{number}", ttl=ttl, renew=renew) for number in range(size)]
    leases = [lock.acquire() for lock in kept]
    acquired = time.perf_counter()

    begin_calls, begin_renewed = len(counts.renewals), counts.renewed
    enough = threading.Event()
    counts.after(begin_renewed + rounds * size, enough.set)
    cpu = time.process_time()
    if not enough.wait(ttl * rounds):
        raise RuntimeError("the renewals did not come")
    cpu = time.process_time() - cpu
    renewed = counts.renewed - begin_renewed
    sizes = counts.renewals[begin_calls:]
    memory = rss() - memory
    keepers = [t for t in threading.enumerate() if t.name.startswith("holdfast-keeper")]
    threads = threading.active_count() - threads
    lost = sum(lease is None or not lease.held for lease in leases)

    releasing = time.perf_counter()
    for lease in leases:
        assert lease is not None
        lost += not lease.release()
    released = time.perf_counter()
    left = len(locks.inspect())
    locks.close()
    return {
        "keeper threads": len(keepers),
        "threads started": threads,
        "renew calls per round and 1000 leases": len(sizes) / renewed * 1000,
        "largest batch": max(sizes),
        "renewal CPU us per lease": cpu / renewed * 1e6,
        "renewal CPU s per round": cpu / renewed * size,
        "bytes per lease": memory / size,
        "acquire us": (acquired - started) / size * 1e6,
        "release us": (released - releasing) / size * 1e6,
        "acquire all s": acquired - started,
        "release all s": released - releasing,
        "lost": lost,
        "left over": left,
    }


def traced(size: int) -> float:
    """Bytes per lease that Python's allocator was asked for: what RSS says, without its pages."""
    with holdfast.connect("memory://traced") as locks:
        with locks.lock("warm"):  # starts the keeper
            pass
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        kept = [locks.lock(f"job:{number}") for number in range(size)]
        leases = [lock.acquire() for lock in kept]
        size_now = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for lease in leases:
            assert lease is not None
            lease.release()
    return (size_now - before) / size
