"""Random signals and lease losses against `holdfast run`; does the command ever outlive its lock?

    python -m tests.cli.stress_run --rounds 200 [--seed N] [--store served|sqlite] [--load N]

Each round starts a `holdfast run` whose command (and, where a loss is provoked, a grandchild in a
session of its own) writes a heartbeat of CLOCK_BOOTTIME every millisecond; somebody else waits for
the lock. Then something happens to one of the processes, or to the store. Judged afterwards:

- outlived: a heartbeat later than the next grant, by the store's own date of it
- left: a process of the round still alive after `holdfast run` has ended
- stuck: the waiter did not have the lock one lease (and a margin) after it could
- status: an exit status that is none of those documented for what was done

`evict` is an order to overlap: there only the end within a renewal interval is judged. With the
sqlite store the death of the warden frees the lock at the same moment: overlaps of a few
milliseconds are a known limit (docs/how-to/run-a-command-once.md) and counted apart. Ends with a
summary; exit status 1 if anything was violated.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import holdfast as library
from holdfast.cli import kernel
from tests.cli.harness import PATIENCE, alive, line, started, until
from tests.cli.store import Store
from tests.cli.test_run_lost import CHILD, heartbeats

SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP,
)  # fmt: skip
KNOWN_LIMIT = 0.5
"""Where the death of the warden frees the lock at once, it takes us a moment to kill the rest: some
milliseconds, and on a busy machine this at most."""
LATE = 8.0
"""What nobody does in time is not done for a minute, and a busy machine may take some seconds."""
HARMLESS = (signal.SIGWINCH, signal.SIGCONT)


@dataclass
class Round:
    """One `holdfast run` and what is done to it."""

    fault: str
    url: str
    store: Store | None
    dice: random.Random
    ttl: float
    violations: list[str] = field(default_factory=list[str])
    ahead: float = 0.0  # how long before the next grant the last sign of life was
    overlapped: bool = False  # within the known limit
    status: int = 0
    said: str = ""
    granted: float = 0.0

    @property
    def forks(self) -> bool:
        """A grandchild that outlives a command which ended by itself is not a violation."""
        return self.fault not in ("signal", "group signal", "kill command", "kill all")

    def play(self, folder: str) -> None:
        beats = Path(folder, "beats")
        deaf = [
            *(["--fork"] if self.forks else []),
            *(["--deaf"] if self.dice.random() < 0.5 else []),
        ]
        command = ("run", "job", "--ttl", f"{self.ttl}", "--", *CHILD, "beat", str(beats), *deaf)
        with started(*command, url=self.url) as run, self.successor() as taken:
            pids = [run.pid, *map(int, line(run).split())]
            front, command_pid, warden, _ = pids
            try:
                until(lambda: heartbeats(beats, 2 if self.forks else 1), "it beats")
                time.sleep(self.dice.uniform(0, 0.8 * self.ttl))
                began = kernel.now()
                undo = self.strike(front, warden, command_pid)
                in_time = taken.wait(PATIENCE)
                undo()
                if not in_time:
                    self.violations.append("stuck")
                    return
                self.status = self.wait(run)
                assert run.stderr is not None
                self.said = run.stderr.read()
                self.judge(beats, began, pids)
            finally:
                kernel.signal_all(signal.SIGKILL, filter(self.beats_there(beats), pids[1:]))

    @staticmethod
    def beats_there(beats: Path) -> Callable[[int], bool]:
        """Whether a process is one of this round's; its number alone may be another's by now."""

        def ours(pid: int) -> bool:
            words = Path(f"/proc/{pid}/cmdline")
            return pid > 0 and words.exists() and str(beats).encode() in words.read_bytes()

        return ours

    def wait(self, run: subprocess.Popen[str]) -> int:
        for _ in range(2):
            try:
                return run.wait(PATIENCE / 2)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGCONT)
        self.violations.append("stuck")
        return 0

    @contextmanager
    def successor(self) -> Iterator[threading.Event]:
        taken = threading.Event()

        def wait() -> None:
            with library.connect(self.url) as locks, locks.lock("job", timeout=PATIENCE, ttl=60):
                (info,) = (info for info in locks.inspect("job") if info.name == "job")
                # The latest moment at which it can have been granted, by the store's own word.
                self.granted = kernel.now() - info.holders[0].since
                taken.set()

        with library.connect(self.url) as locks:
            until(lambda: locks.inspect("job"), "the command's lock is taken")
            thread = threading.Thread(target=wait)
            thread.start()
            try:
                until(
                    lambda: any(i.waiters for i in locks.inspect("job")) or taken.is_set(), "wait"
                )
                yield taken
            finally:
                thread.join()

    def strike(self, front: int, warden: int, command: int) -> Callable[[], None]:
        """Do it; returns what makes it undone."""
        with ExitStack() as undo:
            match self.fault:
                case "kill front":
                    os.kill(front, signal.SIGKILL)
                case "kill warden":
                    os.kill(warden, signal.SIGKILL)
                case "kill command":
                    os.kill(command, signal.SIGKILL)
                case "kill all":
                    os.killpg(front, signal.SIGKILL)
                case "stop warden":
                    os.kill(warden, signal.SIGSTOP)
                case "stop front":
                    os.kill(front, signal.SIGSTOP)
                    time.sleep(self.dice.uniform(0, 1.5 * self.ttl))
                    os.kill(front, signal.SIGKILL)
                case "signal" | "group signal":
                    self.signal(front, command)
                case "silent store":
                    assert self.store is not None
                    undo.enter_context(self.store.silence(warden))
                case "absent store":
                    assert self.store is not None
                    undo.enter_context(self.store.absence(warden))
                case "evict":
                    with library.connect(self.url) as locks:
                        locks.evict("job")
                case other:
                    raise AssertionError(other)
            return undo.pop_all().close

    def signal(self, front: int, command: int) -> None:
        """Some signals at random, the last of which ends the command."""
        send = os.kill if self.fault == "signal" else os.killpg
        for _ in range(self.dice.randrange(4)):
            number = self.dice.choice((*HARMLESS, signal.SIGTSTP))
            send(front, number)
            time.sleep(self.dice.uniform(0, 0.2))
        send(front, signal.SIGCONT)
        send(front, self.dice.choice((signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)))

    def judge(self, beats: Path, began: float, pids: list[int]) -> None:
        last = max(heartbeats(beats, who)[-1] for who in (1, 2)[: 1 + self.forks])
        self.ahead = self.granted - last
        if self.fault == "evict":
            if last > began + self.ttl / 3 + LATE:
                self.violations.append("outlived")
        elif self.ahead <= 0:
            known = self.store is None and self.fault == "kill warden" and self.ahead > -KNOWN_LIMIT
            self.overlapped = known
            if not known:
                self.violations.append("outlived")
        time.sleep(0.01)
        if [pid for pid in pids if pid > 0 and alive(pid)]:
            self.violations.append("left")
        if self.granted > max(began, last) + self.ttl + LATE:
            self.violations.append("stuck")
        if self.status not in self.expected():
            self.violations.append(f"status {self.status}")

    def expected(self) -> tuple[int, ...]:
        """`holdfast run`'s own status; negative when it was itself killed."""
        if self.fault in ("kill front", "kill all", "stop front"):
            return (-signal.SIGKILL,)
        if self.fault in ("signal", "group signal"):
            return tuple(128 + number for number in SIGNALS)
        return (137,) if self.fault == "kill command" else (70,)


FAULTS = (
    "signal", "group signal", "kill front", "kill warden", "kill command", "kill all",
    "stop warden", "stop front", "evict",
)  # fmt: skip
SERVED_FAULTS = (*FAULTS, "silent store", "absent store")
BY_THE_CLOCK = ("stop warden", "stop front", "silent store", "absent store")


def play(fault: str, seed: int, kind: str = "served", *, patient: bool = False) -> Round:
    """One round, with a store of its own. `patient`: where a clock ends the command the lease is
    long, and its margin, a tenth, more than a busy machine keeps a process waiting; and no lease is
    so short that a machine that stands still for a second loses it."""
    dice = random.Random(seed)
    shortest, longest = 0.5, 1.2
    if patient:
        shortest, longest = (6.0, 8.0) if fault in BY_THE_CLOCK else (2.5, 3.5)
    with tempfile.TemporaryDirectory(prefix="holdfast-stress-") as folder, ExitStack() as stack:
        store = Store() if kind == "served" else None
        if store is not None:
            stack.callback(store.close)
        url = store.url if store is not None else f"sqlite://{folder}/locks.db"
        one = Round(fault, url, store, dice, round(dice.uniform(shortest, longest), 2))
        one.play(folder)
        return one


def burn() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--store", choices=("served", "sqlite"), default="served")
    parser.add_argument("--load", type=int, default=0, help="processes that only burn time")
    parser.add_argument("--fault", choices=SERVED_FAULTS, action="append")
    given = parser.parse_args()
    faults = given.fault or (SERVED_FAULTS if given.store == "served" else FAULTS)
    counts: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    ahead: dict[str, list[float]] = {}
    overlaps = 0
    began = time.monotonic()
    burning = [burn() for _ in range(given.load)]
    try:
        for number in range(given.rounds):
            seed = given.seed + number
            fault = random.Random(seed).choice(faults)
            one = play(fault, seed, given.store)
            counts[fault] += 1
            ahead.setdefault(fault, []).append(one.ahead)
            overlaps += one.overlapped
            for violation in one.violations:
                violations[f"{fault}: {violation}"] += 1
                print(
                    f"round {number}, seed {seed}: {fault}: {violation} "
                    f"(ttl {one.ttl} s, last beat {one.ahead * 1e3:.2f} ms before the grant)\n"
                    f"{one.said}"
                )
    finally:
        for process in burning:
            process.kill()
            process.wait()
    print(
        f"{sum(counts.values())} rounds on {given.store} in {time.monotonic() - began:.0f} s,",
        end="",
    )
    print(f" seed {given.seed}, load {given.load}")
    print("how long before the next grant the last sign of life was, least and median:")
    for fault, values in sorted(ahead.items()):
        least, middle = min(values) * 1e3, statistics.median(values) * 1e3
        print(f"  {fault:<14} {len(values):4} rounds  {least:9.1f} ms  {middle:9.1f} ms")
    if given.store == "sqlite":
        print(f"overlaps after the warden was killed (known limit): {overlaps}")
    print(f"violations: {sum(violations.values())}", dict(violations) or "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
