"""Kill -9 at random moments inside once, election, latch, barrier: nobody is stuck, nothing left.

    python -m tests.stress.tools redis                       a server of its own, 200 kills for each
    python -m tests.stress.tools etcd --kills 50 --tool once
    python -m tests.stress.tools sqlite:///tmp/x.db
    python -m tests.stress.tools redis --record bench/results

Contract: a few processes use one tool on the same names, over and over. At random moments one of
them is killed, wherever it is, and another one begins. From each kill on the others must get on
within PATIENCE; at the end all end by themselves, what must be exclusive was, and within a lease
nobody holds and nobody waits. Exit status 1 if not.

This process has no client while it forks (law 8 is tested elsewhere), and kills its own children
only, by their pids.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing as mp
import os
import random
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.report import conditions

import holdfast
from tests.servers import EtcdServer, RedisServer

__all__ = ["TOOLS", "Outcome", "stress"]

LEASE = 1.0
"""Unless told otherwise. Whoever is not let run for so long by this machine loses what it holds, as
it must, and two may then compute at once: a busy one needs more."""
KEEP = 20.0
PATIENCE = 60.0
"""Seconds in which somebody must get on: far more than a lease, since this machine may be busy."""
WORKERS = 4
fork = mp.get_context("fork")


class Shared:
    """What the processes share beside the store: memory without locks, which the dead would keep.
    Each process has a slot of its own."""

    def __init__(self, processes: int, lease: float) -> None:
        self.uses = fork.RawArray("q", processes)
        self.wrong = fork.RawArray("q", processes)
        self.stopping = fork.RawValue("q", 0)
        self.inside = fork.RawValue("q", 0)  # the pid that leads or computes
        self.slot = 0  # of this process
        self.lease = lease

    @property
    def progress(self) -> int:
        return sum(self.uses)

    def enter(self) -> None:
        """Somebody else inside is wrong, unless it is dead: then it was killed there."""
        if self.inside.value and _alive(self.inside.value):
            self.wrong[self.slot] += 1
        self.inside.value = os.getpid()

    def leave(self) -> None:
        if self.inside.value == os.getpid():
            self.inside.value = 0
        else:
            self.wrong[self.slot] += 1


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- the tools -------------------------------------------------------------------------------------


def once(locks: holdfast.Locks, shared: Shared, dice: random.Random) -> None:
    def compute() -> int:
        shared.enter()
        time.sleep(dice.uniform(0, 0.01))
        shared.leave()
        return os.getpid()

    # Long enough to be good when it is written, also on a busy machine; most are invalidated.
    token = locks.once("token", 1.0, compute, ahead=0.5, lease=shared.lease)
    if dice.random() < 0.3:
        with token.hold() as using:
            time.sleep(dice.uniform(0, 0.005))
            token.invalidate(using.value)
    else:
        token.get()


def election(locks: holdfast.Locks, shared: Shared, dice: random.Random) -> None:
    chosen = locks.election("leader", ttl=shared.lease)
    leadership = chosen.campaign(os.getpid())
    assert leadership is not None
    with leadership:
        shared.enter()
        time.sleep(dice.uniform(0, 0.005))
        leader = chosen.leader()
        if leader is not None and leader.value != os.getpid() and leadership.held:
            shared.wrong[shared.slot] += 1
        shared.leave()


def latch(locks: holdfast.Locks, shared: Shared, dice: random.Random) -> None:
    number = 0
    while locks.latch(f"latch-{number}", 6, keep=KEEP).wait(timeout=0):
        number += dice.randint(1, 3)
    current = locks.latch(f"latch-{number}", 6, keep=KEEP)
    while current.count_down():
        time.sleep(dice.uniform(0, 0.002))
    assert current.wait(timeout=PATIENCE)


def barrier(locks: holdfast.Locks, shared: Shared, dice: random.Random) -> None:
    together = locks.barrier("barrier", 2, ttl=shared.lease, keep=KEEP)
    try:
        together.wait(timeout=dice.choice((0.05, 3 * shared.lease)))
    except holdfast.BrokenBarrier:
        together.reset()
    except holdfast.Unavailable:
        pass  # so busy that there was no answer in so short a time


TOOLS: dict[str, Callable[[holdfast.Locks, Shared, random.Random], None]] = {
    "once": once,
    "election": election,
    "latch": latch,
    "barrier": barrier,
}


# -- the processes ---------------------------------------------------------------------------------


def _worker(tool: str, url: str, shared: Shared, slot: int, seed: str) -> None:
    shared.slot = slot
    dice = random.Random(seed)
    try:
        with holdfast.connect(url, request_timeout=PATIENCE) as locks:
            while not shared.stopping.value:
                TOOLS[tool](locks, shared, dice)
                shared.uses[slot] += 1
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # nothing of what was forked is ended in the child


@dataclass
class Outcome:
    tool: str
    seed: int
    kills: int = 0
    uses: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    """Seconds from a kill until somebody got on."""
    violations: list[str] = field(default_factory=list[str])


def stress(tool: str, url: str, kills: int, seed: int, lease: float = LEASE) -> Outcome:
    outcome, dice, shared = (
        Outcome(tool, seed),
        random.Random(f"{tool} {seed}"),
        Shared(kills + WORKERS, lease),
    )
    begun = time.monotonic()
    slots = itertools.count()

    def start() -> mp.process.BaseProcess:
        slot = next(slots)
        one = fork.Process(target=_worker, args=(tool, url, shared, slot, f"{tool} {seed} {slot}"))
        one.start()
        return one

    crew = [start() for _ in range(WORKERS)]
    try:
        _got_on(shared, 0, crew, outcome)
        while outcome.kills < kills and not outcome.violations:
            time.sleep(dice.uniform(0, 0.1))
            victim = crew.pop(dice.randrange(len(crew)))
            before, at = shared.progress, time.monotonic()
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            outcome.kills += 1
            _got_on(shared, before, crew, outcome)
            outcome.longest = max(outcome.longest, time.monotonic() - at)
            crew.append(start())
        shared.stopping.value = 1
        for one in crew:
            one.join(PATIENCE)
            if one.exitcode != 0:
                outcome.violations.append(f"{one.pid} ended with {one.exitcode}")
    finally:
        for one in crew:
            one.kill()
            one.join()
    if sum(shared.wrong):
        outcome.violations.append(f"{sum(shared.wrong)} times two were inside")
    outcome.uses = shared.progress
    outcome.violations += _left(url, lease)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _got_on(
    shared: Shared, before: int, crew: list[mp.process.BaseProcess], outcome: Outcome
) -> None:
    deadline = time.monotonic() + PATIENCE
    while shared.progress == before:
        if time.monotonic() > deadline:
            outcome.violations.append(f"nobody got on for {PATIENCE:g} s after a kill")
            return
        ended = [one for one in crew if one.exitcode is not None]
        if ended:
            outcome.violations.append(f"{ended[0].pid} ended with {ended[0].exitcode}")
            return
        time.sleep(0.001)


def _left(url: str, lease: float) -> list[str]:
    with holdfast.connect(url) as locks:
        deadline = time.monotonic() + 5 * lease + PATIENCE / 2
        while (left := locks.inspect()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"left over: {info}" for info in left]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.tools", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("url", help="redis or etcd: a server of this run's own; or a URL")
    parser.add_argument("--kills", type=int, default=200, help="for each tool (200)")
    parser.add_argument("--tool", choices=list(TOOLS), action="append")
    parser.add_argument("--lease", type=float, default=LEASE, help="seconds (1)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--record", type=Path, help="keep the figures there, as BACKEND-tools.json")
    asked = parser.parse_args()
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    server: RedisServer | EtcdServer | None = None
    with tempfile.TemporaryDirectory():
        if asked.url == "redis":
            server = RedisServer().start()
            url, version = f"redis://127.0.0.1:{server.port}/0", RedisServer.version()
        elif asked.url == "etcd":
            server = EtcdServer().start()
            url, version = f"etcd://127.0.0.1:{server.port}", EtcdServer.version()
        else:
            url, version = asked.url, ""
        try:
            outcomes = []
            for tool in asked.tool or TOOLS:
                outcomes.append(stress(tool, url, asked.kills, seed, asked.lease))
                print(json.dumps(asdict(outcomes[-1])), flush=True)
        finally:
            if server is not None:
                server.stop()
    if asked.record:
        backend = url.partition(":")[0]
        command = shlex.join(["python", "-m", "tests.stress.tools", *sys.argv[1:]])
        document = {
            "backend": backend, "server": version, **conditions(command),
            "tools": [asdict(outcome) for outcome in outcomes],
        }  # fmt: skip
        (asked.record / f"{backend}-tools.json").write_text(json.dumps(document, indent=2) + "\n")
    return 1 if any(outcome.violations for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
