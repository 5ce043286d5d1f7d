"""The crash detector: how long a dead holder keeps its lock, and whether a live one ever loses it.

    python -m tests.stress.crash kills --count 60        kill -9 of a holder, ttl 30, crash_grace 1
    python -m tests.stress.crash pauses --seconds 600    random pauses below half the grace, killed
                                                         links, killed workers, killed detectors
    ... --store redis|mariadb|postgres|redlock           on five masters: links to some of them

Servers of its own, detectors as processes. `pauses` records every hold of every worker by the
host's one clock: cores of a name must be disjoint, and no lease of a worker that was not killed may
be lost.
Exit status: 0 if nothing was found (kills: p99 at most 1.5 s), else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import aio
from holdfast.ports.clock import now
from tests.faults.crash import MariaDBStore, PostgresStore, RedisStore, RedlockStore, Store
from tests.faults.peers import Peer
from tests.faults.redis import in_line, waiting
from tests.servers import MariaDBServer, PostgresServer, RedisMasters, RedisServer

LIMIT = 1.5
"""Seconds from a kill to the next holder: p99."""

STORES: dict[str, tuple[type[Store], Any]] = {
    "redis": (RedisStore, RedisServer),
    "mariadb": (MariaDBStore, MariaDBServer),
    "postgres": (PostgresStore, PostgresServer),
    "redlock": (RedlockStore, RedisMasters),
}

NAMES = ("a", "b", "c", "d")
WORKERS = 5


class Hold(NamedTuple):
    worker: int
    name: str
    fence: int
    begun: float
    ended: float
    how: str


def sentinel(url: str, output: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "holdfast.cli", "sentinel", url, "--json"]
    return subprocess.Popen(words, stdout=output, text=True)


def end(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


# -- kills -----------------------------------------------------------------------------------------


@contextmanager
def served(name: str) -> Iterator[Store]:
    kind, server = STORES[name]
    with server() as running:
        store = kind(running)
        try:
            yield store
        finally:
            store.close()


def kills(count: int, grace: float, name: str) -> int:
    taken: list[float] = []
    with served(name) as store, ExitStack() as stack:
        url = store.fresh(grace)
        stack.callback(end, sentinel(url, subprocess.DEVNULL))
        locks = stack.enter_context(holdfast.connect(url))
        for _ in range(count):
            with Peer(url) as holder:
                holder.acquire("lock('x', ttl=30)")
                with waiting(locks.lock("x", ttl=30), timeout=60) as waiter:
                    if store.shares:
                        in_line(locks, 1)
                    time.sleep(random.uniform(0.3, 0.8))
                    killed = now()
                    holder.kill()
                    waiter.result(60).release()
                    taken.append(waiter.at - killed)
    taken.sort()
    p99 = taken[min(len(taken) - 1, int(len(taken) * 0.99))]
    document = {
        "store": name,
        "kills": count,
        "ttl": 30,
        "crash_grace": grace,
        "p50_s": round(taken[len(taken) // 2], 3),
        "p99_s": round(p99, 3),
        "max_s": round(taken[-1], 3),
        "min_s": round(taken[0], 3),
    }
    print(json.dumps(document))
    return 0 if p99 <= LIMIT and taken[0] >= grace else 1


# -- pauses ----------------------------------------------------------------------------------------


def work(url: str, number: int, path: str) -> None:
    """Take and leave locks for ever; a line for each hold. Every other worker is asyncio's."""
    if number % 2:
        asyncio.run(work_async(url, number, path))
    dice = random.Random(f"{number} {os.getpid()}")
    with open(path, "a", buffering=1) as log, holdfast.connect(url) as locks:
        while True:
            name = dice.choice(NAMES)
            lease = locks.lock(name, ttl=30).acquire()
            assert lease is not None
            begun = last = now()
            log.write(json.dumps(["begun", number, name, lease.fence, begun]) + "\n")
            over = begun + dice.choice((0.01, 0.1, 0.5, 4.0)) * dice.random()
            while (moment := now()) < over and not lease.lost.is_set():
                if lease.held:
                    last = moment  # looked at before: it was held at that moment
                time.sleep(0.005)
            moment = now()
            held = lease.held
            released = lease.release()
            how = "released" if released else "lost"
            # A lease that is released while it is uncertain counts until it was last seen held.
            ended = moment if held else last
            log.write(json.dumps(["ended", number, name, lease.fence, begun, ended, how]) + "\n")


async def work_async(url: str, number: int, path: str) -> None:
    """The same, three tasks at a time."""
    with open(path, "a", buffering=1) as log:
        async with aio.connect(url) as locks:
            await asyncio.gather(*(_task(locks, log, number, task) for task in range(3)))


async def _task(locks: aio.Locks, log: Any, number: int, task: int) -> None:
    dice = random.Random(f"{number} {os.getpid()} {task}")
    while True:
        name = dice.choice(NAMES)
        lease = await locks.lock(name, ttl=30).acquire()
        assert lease is not None
        begun = last = now()
        log.write(json.dumps(["begun", number, name, lease.fence, begun]) + "\n")
        over = begun + dice.choice((0.01, 0.1, 0.5, 4.0)) * dice.random()
        while (moment := now()) < over and not lease.lost.is_set():
            if lease.held:
                last = moment
            await asyncio.sleep(0.005)
        moment = now()
        held = lease.held
        how = "released" if await lease.release() else "lost"
        ended = moment if held else last
        log.write(json.dumps(["ended", number, name, lease.fence, begun, ended, how]) + "\n")


class Worker:
    def __init__(self, url: str, number: int, folder: Path) -> None:
        self.path = folder / f"worker-{number}.log"
        words = ["-m", "tests.stress.crash", "worker", url, str(number), str(self.path)]
        self.process = subprocess.Popen([sys.executable, *words])
        self.paused = 0.0
        self.paused_until = 0.0
        self.resumed = 0.0


def pauses(seconds: float, grace: float, seed: int, name: str) -> int:
    dice = random.Random(seed)
    did: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary, served(name) as store, ExitStack() as stack:
        folder = Path(temporary)
        url = store.fresh(grace)
        said = stack.enter_context((folder / "sentinels.json").open("w"))
        detectors = [sentinel(url, said) for _ in range(2)]
        workers = [Worker(url, number, folder) for number in range(WORKERS)]
        numbers = WORKERS
        killed: dict[str, float] = {}
        waker = stack.enter_context(Waker(workers))
        try:
            stop = now() + seconds
            while now() < stop:
                time.sleep(dice.uniform(0.01, 0.25))
                worker = dice.choice(workers)
                what = dice.random()
                if what < 0.45:
                    # Less than half the grace, and then some time to come back to one's senses.
                    if now() > worker.resumed + grace / 4 and not worker.paused_until:
                        waker.pause(worker, dice.uniform(0.0, 0.49 * grace))
                        did["pauses"] += 1
                elif what < 0.95:
                    found = list(store.links().values())
                    if found:
                        link = dice.choice(found)
                        if isinstance(link, list):  # one to each node
                            link = dice.sample(link, dice.randint(1, len(link)))
                        store.end(link)
                        did["killed links"] += 1
                elif what < 0.97:
                    killed[worker.path.name] = now()
                    end(worker.process)
                    did["killed workers"] += 1
                    workers[workers.index(worker)] = Worker(url, numbers, folder)
                    numbers += 1
                elif what < 0.98:
                    place = dice.randrange(2)
                    end(detectors[place])
                    detectors[place] = sentinel(url, said)
                    did["killed detectors"] += 1
                else:
                    detector = dice.choice(detectors)
                    detector.send_signal(signal.SIGSTOP)
                    time.sleep(dice.choice((0.1, 0.6)) * grace * dice.random())
                    detector.send_signal(signal.SIGCONT)
                    did["paused detectors"] += 1
        finally:
            for worker in workers:
                killed.setdefault(worker.path.name, now())
                end(worker.process)
            for detector in detectors:
                end(detector)
        holds = gather(folder, killed)
        events = Counter(
            json.loads(line)["event"]
            for line in (folder / "sentinels.json").read_text().splitlines()
            if line.endswith("}")
        )
    lost = [hold for hold in holds if hold.how == "lost"]
    overlaps = list(overlapping(holds))
    document = {
        "store": name,
        "seed": seed,
        "seconds": seconds,
        "crash_grace": grace,
        "holds": len(holds),
        **did,
        "longest_pause_s": round(waker.longest, 3),
        "events": dict(events),
        "lost": [hold._asdict() for hold in lost],
        "overlaps": [[one._asdict(), other._asdict()] for one, other in overlaps],
    }
    print(json.dumps(document))
    return 1 if lost or overlaps else 0


class Waker:
    """Pauses workers, and ends each pause in time, whatever else is done meanwhile."""

    def __init__(self, workers: list[Worker]) -> None:
        self.longest = 0.0
        self._workers = workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wake)

    def __enter__(self) -> Waker:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def pause(self, worker: Worker, seconds: float) -> None:
        worker.process.send_signal(signal.SIGSTOP)
        worker.paused = now()
        worker.paused_until = worker.paused + seconds

    def _wake(self) -> None:
        while not self._over.wait(0.003):
            moment = now()
            for worker in list(self._workers):
                if worker.paused_until and moment >= worker.paused_until:
                    worker.process.send_signal(signal.SIGCONT)
                    worker.paused_until, worker.resumed = 0.0, moment
                    self.longest = max(self.longest, now() - worker.paused)


def gather(folder: Path, killed: dict[str, float]) -> list[Hold]:
    """All holds; one that its worker's death ended has ended by then."""
    holds: list[Hold] = []
    for path in folder.glob("worker-*.log"):
        begun: dict[tuple[str, int], list[Any]] = {}
        for line in path.read_text().splitlines():
            if not line.endswith("]"):  # it was killed while it wrote
                continue
            kind, *words = json.loads(line)
            if kind == "begun":
                begun[words[1], words[2]] = words
            else:
                del begun[words[1], words[2]]
                holds.append(Hold(*words))
        for worker, name, fence, at in begun.values():
            holds.append(Hold(worker, name, fence, at, killed[path.name], "killed"))
    return holds


def overlapping(holds: list[Hold]) -> Any:
    for name in NAMES:
        last: Hold | None = None
        for hold in sorted((h for h in holds if h.name == name), key=lambda h: h.begun):
            if last is not None and hold.begun < last.ended:
                yield last, hold
            if last is None or hold.ended > last.ended:
                last = hold


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_subparsers(dest="what", required=True).add_parser
    killing = add("kills")
    killing.add_argument("--count", type=int, default=60)
    killing.add_argument("--grace", type=float, default=1.0)
    pausing = add("pauses")
    pausing.add_argument("--seconds", type=float, default=600.0)
    pausing.add_argument("--grace", type=float, default=2.0)
    pausing.add_argument("--seed", type=int, default=random.randrange(10**6))
    for command in (killing, pausing):
        command.add_argument("--store", choices=list(STORES), default="redis")
    working = add("worker")
    working.add_argument("words", nargs=3)
    said = parser.parse_args()
    if said.what != "worker":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`
    if said.what == "kills":
        return kills(said.count, said.grace, said.store)
    if said.what == "pauses":
        return pauses(said.seconds, said.grace, said.seed, said.store)
    url, number, path = said.words
    work(url, int(number), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
