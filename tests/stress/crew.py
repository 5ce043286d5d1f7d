"""The workers, and what is done to them.

Contract: keeps so many workers running, and at random moments kills one and starts another, stops
one for a while, has one fork, sets one's wall clock. Each kill is noted *before* its signal is
sent, each stop from before its signal until after its end. Ends no process but its own, by their
pids: workers, and the forked children that they left (this process adopts those; what was there
before is not touched). `close` leaves none of them, whatever happened.
Partners: `worker.py`; `__main__.py`, which says how long.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.stress.check import Span
from tests.stress.child import LIMIT
from tests.stress.record import count_begun, now
from tests.stress.worker import STYLES

__all__ = ["Crew", "Run"]

PR_SET_CHILD_SUBREAPER = 36
ROOT = Path(__file__).resolve().parent.parent.parent
SHORT, LONG = 0.05, 4.0
"""Seconds of a stop: from shorter than any lease to longer than all."""
HOUR = 3600.0
FAULTS = {"kill": 7, "pause": 7, "fork": 7, "clock": 4}
"""How often in a round; dealt as cards are, so that none stays away for long."""
TO_FINISH = LIMIT + 10.0
"""Seconds that a worker has from `stop` to its exit. They need a fraction of one."""


@dataclass(frozen=True)
class Run:
    """What is to be done."""

    url: str
    folder: Path
    prefix: str
    seed: int
    processes: int = 6
    actors: int = 4
    calm: float = 0.35
    """Seconds from one fault to the next, on average."""


@dataclass
class Worker:
    number: int
    index: int
    process: subprocess.Popen[bytes]
    errors: Path
    stopped: float | None = None
    resume_at: float = math.inf

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()


@dataclass
class Crew:
    run: Run
    others: Callable[[], set[int]] = set
    """Children of this process that are somebody else's: a store's."""
    killed: dict[int, float] = field(default_factory=dict[int, float])
    """Number of a worker -> when it was decided to kill it."""
    stops: list[Span] = field(default_factory=list[Span])
    did: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._random = random.Random(self.run.seed)
        self._workers: dict[int, Worker] = {}  # by index, 0 to processes - 1
        self._number = 0
        self._next = 0.0
        self._deck: list[str] = []
        self._positions: dict[str, int] = {}
        self._begun = 0
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def start(self) -> None:
        for index in range(self.run.processes):
            self._start(index)
        self._next = now() + 1.0

    def _start(self, index: int) -> None:
        run, number = self.run, self._number
        self._number += 1
        errors = run.folder / f"worker-{number}.err"
        arguments = (
            run.url, str(run.folder), str(number), str(run.seed), STYLES[index % len(STYLES)],
            str(run.actors), run.prefix,
        )  # fmt: skip
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.stress.worker", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))},
            )  # fmt: skip
        worker = Worker(number, index, process, errors)
        self._workers[index] = worker
        worker.tell(f"clock {self._step()}")

    def _step(self) -> float:
        return self._random.uniform(-HOUR, HOUR)

    # -- while it runs ----------------------------------------------------------------------------

    def advance(self) -> None:
        """Do what is due, and sleep a little."""
        moment = now()
        for worker in list(self._workers.values()):
            if worker.resume_at <= moment:
                if self._random.random() < 0.1:
                    self._kill(worker)
                else:
                    self._resume(worker)
            elif worker.process.poll() is not None:
                self.wrong.append(f"worker {worker.number} ended with {worker.process.returncode}")
                self._close(worker)
                self._start(worker.index)
        if moment >= self._next:
            self._next = moment + min(5.0, self._random.expovariate(1 / self.run.calm))
            self._strike(self._random.choice(list(self._workers.values())))
        wake = min(self._next, min(worker.resume_at for worker in self._workers.values()))
        time.sleep(min(max(0.0, wake - now()), 0.02))

    def _strike(self, worker: Worker) -> None:
        if not self._deck:
            self._deck = self._random.sample(
                list(FAULTS), counts=FAULTS.values(), k=sum(FAULTS.values())
            )
        fault = self._deck.pop()
        if fault == "kill":
            self._kill(worker)
        elif fault == "pause":
            self._stop(worker)
        elif fault == "fork":
            self.did["forks"] += 1
            worker.tell(f"fork {self.did['forks']}")
        else:
            self.did["clock steps"] += 1
            worker.tell(f"clock {self._step()}")

    def all_struck(self) -> bool:
        """Whether each kind of fault was seen; a fork once its child has begun its log."""
        forked = next(self.run.folder.glob("child-*.log"), None) is not None
        return forked and all(self.did[kind] for kind in ("kills", "pauses", "clock steps"))

    def _kill(self, worker: Worker, replace: bool = True) -> None:
        self.killed[worker.number] = now()
        worker.process.kill()
        worker.process.wait()
        self.did["kills"] += 1
        self._close(worker)
        if replace:
            self._start(worker.index)

    def _stop(self, worker: Worker) -> None:
        if worker.stopped is None:
            length = math.exp(self._random.uniform(math.log(SHORT), math.log(LONG)))
            worker.stopped = now()
            worker.resume_at = worker.stopped + length
            worker.process.send_signal(signal.SIGSTOP)
            self.did["pauses"] += 1

    def _resume(self, worker: Worker) -> None:
        if worker.stopped is not None:
            worker.process.send_signal(signal.SIGCONT)
            self._went_on(worker)

    def _went_on(self, worker: Worker) -> None:
        if worker.stopped is not None:
            self.stops.append((worker.stopped, now()))
            worker.stopped, worker.resume_at = None, math.inf

    def _close(self, worker: Worker) -> None:
        """It has ended, and was waited for."""
        self._went_on(worker)
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()
        del self._workers[worker.index]

    def begun(self) -> int:
        """How many holds have begun."""
        with os.scandir(self.run.folder) as entries:
            for entry in entries:
                position = self._positions.get(entry.path, 0)
                if entry.name.endswith(".log") and entry.stat().st_size > position:
                    count, position = count_begun(Path(entry.path), position)
                    self._positions[entry.path] = position
                    self._begun += count
        return self._begun

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let everybody finish what it has begun."""
        for worker in self._workers.values():
            self._resume(worker)
            worker.tell("stop")
        deadline = now() + TO_FINISH
        for worker in list(self._workers.values()):
            try:
                status = worker.process.wait(max(0.0, deadline - now()))
            except subprocess.TimeoutExpired:
                self.wrong.append(f"worker {worker.number} does not end")
                worker.process.send_signal(signal.SIGUSR1)  # it says where it is
                time.sleep(0.5)
                self._kill(worker, replace=False)
                continue
            if status:
                self.wrong.append(f"worker {worker.number} ended with {status}")
            self._close(worker)
        self._adopted(LIMIT + 10)
        for path in sorted(self.run.folder.glob("*.err")):
            said = path.read_text(errors="replace").strip()
            if said:
                self.wrong.append(f"{path.stem} said: {said}")

    def _adopted(self, patience: float) -> None:
        """Children of killed workers: no other process of ours is left."""
        deadline = now() + patience
        while children := self._left():
            for child in children:
                pid, status = os.waitpid(child, os.WNOHANG)
                if status:
                    code = os.waitstatus_to_exitcode(status)
                    self.wrong.append(f"a forked child of a killed worker ended with {code}")
                if not pid and now() > deadline:
                    self.wrong.append(f"a forked child of a killed worker, {child}, does not end")
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
            time.sleep(0.02)

    def _left(self) -> list[int]:
        others = self.others()
        return [pid for pid in _children() if pid not in others]

    def close(self) -> None:
        """Whatever happened: nobody of ours stays."""
        for worker in list(self._workers.values()):
            self._kill(worker, replace=False)
        with contextlib.suppress(ChildProcessError):
            for child in self._left():
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _children() -> list[int]:
    """Of this process: its own, and those it adopted."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in pids.split()]
