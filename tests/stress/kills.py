"""kill -9 at random moments of a primitive: does anybody wait for ever, or anything stay behind?

    python -m tests.stress.kills redis multi --rounds 200
    python -m tests.stress.kills etcd any --rounds 200 --seed 7

Some processes do turns of one primitive, on a server of its own. One of them is killed at a random
moment, and another is forked in its place, as often as `--rounds` says. What must hold: two who
both hold never meet at a resource (files locked by the kernel, which frees them when a process
dies); who lives goes on; at the end nothing is held or waited for, and on Redis every key expires
by itself. With `--record FILE` the run is added to that file.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.report import conditions

import holdfast
from tests.servers import EtcdServer, RedisServer

__all__ = ["PRIMITIVES", "SERVERS", "Report", "kills"]

WORKERS = 5
TTL = 1.5
PATIENCE = 60.0
"""Seconds after which who waits is stuck: many times a ttl, because this machine may be busy."""

SERVERS: dict[str, Callable[[], RedisServer | EtcdServer]] = {
    "redis": RedisServer,
    "etcd": EtcdServer,
}


class Report:
    """What was seen, in a folder that all processes write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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
    with ExitStack() as stack, locks.multi(*names, ttl=TTL, timeout=PATIENCE) as lease:
        for name in names:
            stack.enter_context(report.alone(name, lambda: lease.held))
        time.sleep(rng.uniform(0, 0.003))
        stack.close()


def any_stripe(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    stripes = locks.stripes("s", 3, ttl=TTL, timeout=PATIENCE)
    if rng.random() < 0.1:
        with stripes.all():
            return
    with stripes.any() as lease, report.alone(lease.name, lambda: lease.held):
        time.sleep(rng.uniform(0, 0.003))


def downgrade(locks: holdfast.Locks, report: Report, rng: random.Random) -> None:
    rwlock = locks.rwlock("d", ttl=TTL, timeout=PATIENCE)
    if rng.random() < 0.5:
        with rwlock.read() as lease, report.at("d", fcntl.LOCK_SH, lambda: lease.held):
            time.sleep(rng.uniform(0, 0.003))
        return
    with rwlock.write() as lease, report.alone("d", lambda: lease.held) as number:
        time.sleep(rng.uniform(0, 0.002))
        report.enter(number, "d", fcntl.LOCK_SH, lambda: lease.held)
        lease.downgrade()
        time.sleep(rng.uniform(0, 0.002))


PRIMITIVES: dict[str, Turn] = {"multi": multi, "any": any_stripe, "downgrade": downgrade}


class Counters:
    """How many turns each place has done, for all processes to see."""

    def __init__(self, places: int) -> None:
        self._memory = mmap.mmap(-1, 8 * places)

    def add(self, place: int) -> None:
        at = slice(8 * place, 8 * place + 8)
        self._memory[at] = (self.read(place) + 1).to_bytes(8, "little")

    def read(self, place: int) -> int:
        return int.from_bytes(self._memory[8 * place : 8 * place + 8], "little")


def _work(url: str, turn: Turn, report: Report, counters: Counters, place: int, seed: str) -> None:
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    rng = random.Random(seed)
    with holdfast.connect(url) as locks:
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


def kills(url: str, primitive: str, rounds: int, seed: int, folder: Path) -> Report:
    """Kill so often; what was seen. Forks, so this process must have no threads."""
    report, counters, rng = Report(folder), Counters(WORKERS), random.Random(seed)
    turn = PRIMITIVES[primitive]
    pids: dict[int, int] = {}

    def start(place: int, number: int) -> None:
        who = f"{seed}:{number}"
        pids[place] = _fork(lambda: _work(url, turn, report, counters, place, who), report)

    try:
        for place in range(WORKERS):
            start(place, place)
        _all_go_on(counters, report)
        for number in range(rounds):
            time.sleep(rng.uniform(0, 0.6))
            place = rng.randrange(WORKERS)
            os.kill(pids[place], signal.SIGKILL)
            os.waitpid(pids.pop(place), 0)
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
    turns = sum(counters.read(place) for place in range(WORKERS))
    report.say(f"turns: {turns}")
    with holdfast.connect(url) as locks:
        deadline = time.monotonic() + PATIENCE
        while left := locks.inspect():
            if time.monotonic() > deadline:
                report.say(f"left: {left}")
                break
            time.sleep(0.1)
    return report


def _all_go_on(counters: Counters, report: Report) -> None:
    """Everybody does another two turns."""
    before = [counters.read(place) for place in range(WORKERS)]
    deadline = time.monotonic() + PATIENCE
    for place in range(WORKERS):
        while counters.read(place) < before[place] + 2:
            if time.monotonic() > deadline:
                report.say(f"stuck: place {place}")
                return
            time.sleep(0.01)


def wrong(report: Report) -> list[str]:
    """What must not be. Who met somebody may have met one whose lease was lost to a pause."""
    said = report.said()
    losses = [line for line in said if line.startswith("lost:")]
    bad = [line for line in said if line.startswith(("failed:", "stuck:", "left:"))]
    return bad + [line for line in said if line.startswith("met:") and not losses]


def _record(path: Path, run: dict[str, object]) -> None:
    """Beside the runs before; the same run again takes the place of the last one."""
    known = json.loads(path.read_text())["runs"] if path.exists() else []
    key = run["server"], run["primitive"]
    command = "python -m tests.stress.kills SERVER PRIMITIVE --rounds 200"
    runs = [other for other in known if (other["server"], other["primitive"]) != key]
    path.write_text(json.dumps({**conditions(command), "runs": [*runs, run]}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("primitive", choices=PRIMITIVES)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    with SERVERS[arguments.server]() as server, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        report = kills(
            server.url, arguments.primitive, arguments.rounds, arguments.seed, Path(folder)
        )
        bad, said = wrong(report), report.said()
        if isinstance(server, RedisServer):
            keys = server.call("KEYS", "*")
            assert isinstance(keys, list)
            for key in keys:
                if int(str(server.call("PTTL", str(key)))) == -1:
                    bad.append(f"left: {key} without an end")
        losses = sum(line.startswith("lost:") for line in said)
        meetings = sum(line.startswith("met:") for line in said)
        turns = int(next(line for line in said if line.startswith("turns:")).split()[1])
        run = {
            "server": arguments.server,
            "primitive": arguments.primitive,
            "kills": arguments.rounds,
            "seed": arguments.seed,
            "seconds": round(time.monotonic() - began),
            "turns": turns,
            "leases lost to pauses": losses,
            "meetings": meetings,
            "wrong": bad,
        }
        print(json.dumps(run))
        if arguments.record:
            _record(arguments.record, run)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
