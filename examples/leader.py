"""A leader and its stand-ins: the leader is killed, and the next one leads.

    python examples/leader.py [URL] [--candidates 3]

Each candidate runs the same function, which works for as long as it leads. This process watches who
leads, kills the leader with SIGKILL, and says how long nobody led. Without a URL the store is
a file, which notices a death at once; other stores take up to the ttl.
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

TTL = 5.0


def candidate(url: str) -> None:
    """What each of your processes does."""

    def lead(leadership: holdfast.Leadership) -> None:
        print(f"  {os.getpid()} leads, with the token {leadership.fence}", flush=True)
        while leadership.held:  # do a piece of work here, and look again
            time.sleep(0.05)
        print(f"  {os.getpid()} leads no more", flush=True)

    with holdfast.connect(url, label="scheduler") as locks:
        locks.election("scheduler", ttl=TTL).run_when_leader(lead, value={"pid": os.getpid()})


def watch(url: str, candidates: int) -> int:
    command = [sys.executable, __file__, url, "--candidate"]
    crew = {one.pid: one for one in (subprocess.Popen(command) for _ in range(candidates))}
    try:
        with holdfast.connect(url) as locks:
            election = locks.election("scheduler", ttl=TTL)
            led: list[int] = []
            killed_at = 0.0
            for leader in election.observe(timeout=60):
                if leader is None or leader.value["pid"] in led:
                    continue
                pid = leader.value["pid"]
                if killed_at:
                    print(f"{pid} leads {time.monotonic() - killed_at:.3f} s after the death")
                led.append(pid)
                if len(led) == candidates:
                    break
                print(f"{pid} leads: kill -9")
                killed_at = time.monotonic()
                crew[pid].send_signal(signal.SIGKILL)
        return 0 if len(led) == candidates else 1
    finally:
        for one in crew.values():
            one.kill()
            one.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fail-over of a leader.")
    parser.add_argument("url", nargs="?", help="the store; without it a file of this run's own")
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument("--candidate", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.candidate:
        candidate(asked.url)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return watch(asked.url or f"sqlite://{folder}/locks.db", asked.candidates)


if __name__ == "__main__":
    sys.exit(main())
