"""kill -9 at random moments inside a tool: does anybody wait for ever, or anything stay behind?

    python -m tests.stress.kills redis                      every tool, 200 kills each
    python -m tests.stress.kills etcd any once --kills 50 --seed 7
    make kills                                              what bench/results/kills-*.json say

Some processes use one tool on the same names, over and over, on a server of its own. One of them is
killed at a random moment, wherever it is, and another is forked in its place. What must hold: from
each kill on the others get on within PATIENCE; two who both hold never meet at a resource (files
locked by the kernel, which frees them when a process dies); at the end nothing is held or waited
for, and on Redis every key expires by itself. Exit status 1 if not.

This process has no client and no thread while it forks (law 8 is tested elsewhere), and kills its
own children only, by their pids.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import mmap
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.report import conditions

import holdfast
from tests.servers import EtcdServer, RedisServer

__all__ = ["SERVERS", "TOOLS", "Report", "kills"]

WORKERS = 5
LEASE = 2.0
"""Unless told otherwise. Whoever is not let run for so long by this machine loses what it holds, as
it must."""
KEEP = 20.0
PATIENCE = 60.0
"""Seconds after which who waits is stuck: many times a ttl, because this machine may be busy."""

SERVERS: dict[str, Callable[[], RedisServer | EtcdServer]] = {
    "redis": RedisServer,
    "etcd": EtcdServer,
}


class Report:
    """What was seen, in a folder that all processes write to."""

    def __init__(self, folder: Path, lease: float) -> None:
        self.folder = folder
        self.lease = lease
        self.turns = 0
        self.longest = 0.0  # seconds from a kill until somebody got on

    def say(self, what: str) -> None:
        with (self.folder / "said").open("a") as file:
            file.write(what + "\n")

    def said(self) -> list[str]:
        path = self.folder / "said"
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def alone(self, name: str, held: Callable[[], bool]) -> Iterator[int]:
        """At the resource of this name; who meets somebody there, and both hold, says so."""
        with self.at(name, fcntl.LOCK_EX, held) as number:
            yield number

    @contextmanager
    def at(self, name: str, kind: int, held: Callable[[], bool]) -> Iterator[int]:
        number = os.open(self.folder / f"resource-{name.replace('/', '-')}", os.O_CREAT | os.O_RDWR)
        try:
            self.enter(number, name, kind, held)
            yield number
            if not held():
                self.say(f"lost: {name}")  # a pause of this process: the others may have gone on
        finally:
            os.close(number)

    def enter(self, number: int, name: str, kind: int, held: Callable[[], bool]) -> None:
        try:
            fcntl.flock(number, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if held():
                self.say(f"met: {name}")


Turn = Callable[[holdfast.Locks, Report, random.Random], None]


def multi(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    names = rng.sample("abcdef", rng.randint(2, 4))
    with ExitStack() as stack, locks.multi(*names, ttl=report.lease, timeout=PATIENCE) as lease:
        for name in names:
            stack.enter_context(report.alone(name, lambda: lease.held))
        time.sleep(rng.uniform(0, 0.003))
        stack.close()


def any_stripe(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    stripes = locks.stripes("s", 3, ttl=report.lease, timeout=PATIENCE)
    if rng.random() < 0.1:
        with stripes.all():
            return
    with stripes.any() as lease, report.alone(lease.name, lambda: lease.held):
        time.sleep(rng.uniform(0, 0.003))


def downgrade(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    rwlock = locks.rwlock("d", ttl=report.lease, timeout=PATIENCE)
    if rng.random() < 0.5:
        with rwlock.read() as lease, report.at("d", fcntl.LOCK_SH, lambda: lease.held):
            time.sleep(rng.uniform(0, 0.003))
        return
    with rwlock.write() as lease, report.alone("d", lambda: lease.held) as number:
        time.sleep(rng.uniform(0, 0.002))
        report.enter(number, "d", fcntl.LOCK_SH, lambda: lease.held)
        lease.downgrade()
        time.sleep(rng.uniform(0, 0.002))


def once(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    def compute() -> int:
        with report.alone("token", lambda: True):
            time.sleep(rng.uniform(0, 0.01))
        return os.getpid()

    # Long enough to be good when it is written, also on a busy machine; most are invalidated.
    token = locks.once("token", 4.0, compute, ahead=0.5, lease=report.lease)
    if rng.random() < 0.3:
        with token.hold() as using:
            time.sleep(rng.uniform(0, 0.005))
            token.invalidate(using.value)
    else:
        token.get()


def election(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    chosen = locks.election("leader", ttl=report.lease)
    leadership = chosen.campaign(os.getpid())
    assert leadership is not None
    with leadership, report.alone("leader", lambda: leadership.held):
        time.sleep(rng.uniform(0, 0.005))
        leader = chosen.leader()
        if leader is not None and leader.value != os.getpid() and leadership.held:
            report.say("met: somebody else is said to lead")


def latch(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    number = 0
    while locks.latch(f"latch-{number}", 6, keep=KEEP).wait(timeout=0):
        number += rng.randint(1, 3)
    current = locks.latch(f"latch-{number}", 6, keep=KEEP)
    while current.count_down():
        time.sleep(rng.uniform(0, 0.002))
    assert current.wait(timeout=PATIENCE)


def barrier(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    together = locks.barrier("barrier", 2, ttl=report.lease, keep=KEEP)
    try:
        together.wait(timeout=rng.choice((0.05, 3 * report.lease)))
    except holdfast.BrokenBarrier:
        together.reset()
    except holdfast.Unavailable:
        pass  # so busy that there was no answer in so short a time


TOOLS: dict[str, Turn] = {
    "multi": multi, "any": any_stripe, "downgrade": downgrade, "once": once, "election": election,
    "latch": latch, "barrier": barrier,
}  # fmt: skip
ELSEWHERE = {("etcd", "downgrade")}
"""What a store refuses."""


class Counters:
    """How many turns each place has done, for all processes to see."""

    def __init__(self, places: int) -> None:
        self._memory = mmap.mmap(-1, 8 * places)

    def add(self, place: int) -> None:
        at = slice(8 * place, 8 * place + 8)
        self._memory[at] = (self.read(place) + 1).to_bytes(8, "little")

    def read(self, place: int) -> int:
        return int.from_bytes(self._memory[8 * place : 8 * place + 8], "little")

    def sum(self) -> int:
        return sum(self.read(place) for place in range(WORKERS))

    def above(self, before: int, place: int | None = None) -> bool:
        return (self.sum() if place is None else self.read(place)) > before


def _work(url: str, turn: Turn, report: Report, counters: Counters, place: int, seed: str) -> None:
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    rng = random.Random(seed)
    with holdfast.connect(url, request_timeout=PATIENCE) as locks:
        while not stopping:
            try:
                turn(locks, report, rng)
            except holdfast.LeaseLost as loss:
                report.say(f"lost: {loss.name}")
            counters.add(place)


def _fork(work: Callable[[], None], report: Report) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        report.say(f"failed: {error!r}")
    finally:
        os._exit(status)


def kills(
    url: str, tool: str, rounds: int, seed: int, folder: Path, lease: float = LEASE
) -> Report:
    """Kill so often; what was seen. Forks, so this process must have no threads."""
    report, counters = Report(folder, lease), Counters(WORKERS)
    rng = random.Random(f"{tool} {seed}")
    pids: dict[int, int] = {}
    longest = 0.0

    def start(place: int, number: int) -> None:
        who = f"{tool} {seed} {number}"
        pids[place] = _fork(lambda: _work(url, TOOLS[tool], report, counters, place, who), report)

    try:
        for place in range(WORKERS):
            start(place, place)
        _all_go_on(counters, report)
        for number in range(rounds):
            time.sleep(rng.uniform(0, 0.2))
            place, before, at = rng.randrange(WORKERS), counters.sum(), time.monotonic()
            os.kill(pids[place], signal.SIGKILL)
            os.waitpid(pids.pop(place), 0)
            if not _until(partial(counters.above, before)):
                report.say("stuck: nobody got on after a kill")
                break
            longest = max(longest, time.monotonic() - at)
            start(place, WORKERS + number)
        _all_go_on(counters, report)
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        for place in list(pids):
            if os.waitpid(pids.pop(place), 0)[1]:
                report.say("failed: a process did not end well")
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    report.turns, report.longest = counters.sum(), longest
    with holdfast.connect(url) as locks:
        if not _until(lambda: not locks.inspect()):
            report.say(f"left: {locks.inspect()}")
    return report


def _until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _all_go_on(counters: Counters, report: Report) -> None:
    """Everybody does another two turns."""
    before = [counters.read(place) for place in range(WORKERS)]
    for place in range(WORKERS):
        if not _until(partial(counters.above, before[place] + 1, place)):
            report.say(f"stuck: place {place}")
            return


def wrong(report: Report) -> list[str]:
    """What must not be. Who met somebody may have met one whose lease was lost to a pause."""
    said = report.said()
    losses = [line for line in said if line.startswith("lost:")]
    bad = [line for line in said if line.startswith(("failed:", "stuck:", "left:"))]
    return bad + [line for line in said if line.startswith("met:") and not losses]


def one(server: RedisServer | EtcdServer, tool: str, asked: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = kills(server.url, tool, asked.kills, asked.seed, Path(folder), asked.lease)
        bad, said = wrong(report), report.said()
    if isinstance(server, RedisServer):
        keys = server.call("KEYS", "*")
        assert isinstance(keys, list)
        bad += [
            f"left: {key} without an end"
            for key in keys
            if int(str(server.call("PTTL", str(key)))) == -1
        ]
        server.call("FLUSHALL")
    return {
        "tool": tool,
        "kills": asked.kills,
        "seed": asked.seed,
        "turns": report.turns,
        "seconds": round(time.monotonic() - began),
        "longest": round(report.longest, 3),
        "leases lost to pauses": sum(line.startswith("lost:") for line in said),
        "meetings": sum(line.startswith("met:") for line in said),
        "violations": bad,
    }


def _record(path: Path, said: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """Beside the other tools' runs; the same tool's takes the place of its last one."""
    new = {run["tool"]: {**said, **run} for run in runs}
    known = json.loads(path.read_text()) if path.exists() else []
    old = {run["tool"]: run for run in known}
    path.write_text(json.dumps([*{**old, **new}.values()], indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.kills", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("tool", nargs="*", metavar="TOOL", help=f"of {', '.join(TOOLS)} (all)")
    parser.add_argument("--kills", type=int, default=200, help="for each tool (200)")
    parser.add_argument("--lease", type=float, default=LEASE, help="seconds (2)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--record", type=Path, help="keep the figures there: kills-SERVER.json")
    asked = parser.parse_intermixed_args()
    if unknown := set(asked.tool) - set(TOOLS):
        parser.error(f"no such tool: {', '.join(unknown)}")
    if asked.seed is None:
        asked.seed = random.randrange(1 << 32)
    tools = asked.tool or [tool for tool in TOOLS if (asked.server, tool) not in ELSEWHERE]
    runs: list[dict[str, Any]] = []
    with SERVERS[asked.server]() as server:
        for tool in tools:
            runs.append(one(server, tool, asked))
            print(json.dumps(runs[-1]), flush=True)
        version = server.version()
    if asked.record:
        command = shlex.join(["python", "-m", "tests.stress.kills", *sys.argv[1:]])
        said = {"server": asked.server, "version": version, **conditions(command)}
        _record(asked.record / f"kills-{asked.server}.json", said, runs)
    return 1 if any(run["violations"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
