"""The leader is killed with -9: how long until an observer hears of the next one?

Two candidates stand in line in processes of their own, and so does the leader. Its lease is TTL
seconds long: what a store takes to notice a death is in the figure, and is what differs most.
Nobody is pinned.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator

import holdfast
from bench.entrants import Entrant
from bench.peers import PROCESSES
from bench.session import Case, Plan
from bench.stats import Figures, quantile

__all__ = ["run"]

KILLS, TTL, CANDIDATES = 10, 2.0, 3
LIMIT = 60.0


def run(plan: Plan) -> Iterator[Case]:
    targets = plan.field.targets(PROCESSES)
    kills = int(plan.amount(KILLS, 1))
    runs = {target.label: [_failovers(target, plan.field.imports, kills)] for target in targets}
    if runs:
        yield Case(
            "election",
            f"{kills} kills, ttl {TTL:g}",
            "not pinned",
            runs,
            [],
            [],
            {target.label: holdfast.__version__ for target in targets},
        )


def _failovers(target: Entrant, imports: list[str], kills: int) -> Figures:
    name = f"election-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "bench.candidate", target.target, name, str(TTL), *imports]
    crew: dict[int, subprocess.Popen[bytes]] = {}
    taken: list[float] = []
    try:
        with holdfast.connect(target.target) as locks:
            election = locks.election(name, ttl=TTL)
            changes = election.observe(timeout=LIMIT)
            killed_at = 0.0
            _fill(crew, command)
            for leader in changes:
                heard = time.monotonic()
                if leader is None or leader.value not in crew:
                    continue
                if killed_at:
                    taken.append((heard - killed_at) * 1e3)
                if len(taken) == kills:
                    break
                _fill(crew, command)
                _in_line(locks, name)
                time.sleep(random.uniform(0, TTL / 3))  # its lease is in any part of its time
                killed_at = time.monotonic()
                victim = crew.pop(leader.value)
                victim.kill()
                victim.communicate()
    finally:
        for one in crew.values():
            one.kill()
            one.communicate()
    if len(taken) < kills:
        raise RuntimeError(f"{target.label}: nobody leads for {LIMIT:g} s")
    taken.sort()
    return {
        "p50 ms": quantile(taken, 0.5),
        "p99 ms": quantile(taken, 0.99),
        "max ms": taken[-1],
    }


def _fill(crew: dict[int, subprocess.Popen[bytes]], command: list[str]) -> None:
    while len(crew) < CANDIDATES:
        one = subprocess.Popen(command, stdout=subprocess.PIPE)
        crew[one.pid] = one
        assert one.stdout is not None
        one.stdout.readline()  # it has imported everything, and asks


def _in_line(locks: holdfast.Locks, name: str) -> None:
    """Until somebody is ready to follow."""
    end = time.monotonic() + LIMIT
    while not any(line.waiters for line in locks.inspect(f"election:{name}")):
        if time.monotonic() > end:
            raise RuntimeError("no candidate stands in line")
        time.sleep(0.01)
