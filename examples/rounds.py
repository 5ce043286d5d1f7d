"""Work in rounds: nobody begins one before everybody is ready, nor before all have done the last.

    python examples/rounds.py [URL] [--workers 4] [--rounds 3]

A latch opens when all workers are ready. A barrier ends each round. At last they wait for this
process too, which kills one of them instead of coming: the others are told that it is in vain.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

import holdfast

TTL = 3.0


def worker(url: str, workers: int, rounds: int) -> int:
    with holdfast.connect(url) as locks:
        ready = locks.latch("ready", workers)
        together = locks.barrier("round", workers, ttl=TTL)
        ready.count_down()
        if not ready.wait(timeout=60):
            return 1
        for number in range(rounds):
            arrived = together.wait(timeout=60)
            if arrived == 0:
                print(f"round {number + 1} is done", flush=True)
        try:
            locks.barrier("the end", workers + 1, ttl=TTL).wait(timeout=60)
        except holdfast.BrokenBarrier as broken:
            print(f"worker {os.getpid()}: {broken}", flush=True)
            return 0
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="A latch and a barrier.")
    parser.add_argument("url", nargs="?", help="the store; without it a file of this run's own")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return worker(asked.url, asked.workers, asked.rounds)
    with tempfile.TemporaryDirectory() as folder:
        url = asked.url or f"sqlite://{folder}/locks.db"
        command = [sys.executable, __file__, url, "--worker", f"--workers={asked.workers}"]
        command += [f"--rounds={asked.rounds}"]
        crew = [subprocess.Popen(command) for _ in range(asked.workers)]
        with holdfast.connect(url) as locks:
            the_end = locks.barrier("the end", asked.workers + 1, ttl=TTL)
            while the_end.waiting() < asked.workers:
                time.sleep(0.05)
        crew[0].send_signal(signal.SIGKILL)
        ended = [one.wait() for one in crew]
    print(f"one was killed, and the others ended with {ended[1:]}")
    return 0 if ended == [-signal.SIGKILL, *[0] * (asked.workers - 1)] else 1


if __name__ == "__main__":
    sys.exit(main())
