"""A worker: one process that uses one adapter, as its parent tells it. `python -m bench.worker`.

Contract: a line of JSON on standard input is a command, a line of JSON on standard output is its
answer, `{"error": traceback}` if it failed; the end of the input ends the worker. A command says
how long it may take: when that is over the process prints where every thread stands, and ends.
Runs in the environment of the peer it measures, so it imports the standard library, `bench`'s own
modules of that kind, and the peer. Partners: `bench/crew.py` (the parent's side), `bench/work.py`
(what the commands do).
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from bench import work
from bench.meter import Meter, Reading, meter_of
from bench.peers.base import Adapter, Starter
from bench.stats import Turn

__all__ = ["main"]


class Worker:
    """The adapter, and the state between commands."""

    adapter: Adapter
    meter: Meter | None = None

    def __init__(self) -> None:
        self.mutexes: dict[str, Any] = {}
        self.standing: work.Waiters | None = None
        self.made: dict[int, Any] = {}

    def do_open(self, module: str, target: str, options: dict[str, Any], meter: str | None) -> str:
        """Make the adapter; its version. `meter` is the server that keeps the books."""
        self._server = meter
        connect: Starter = importlib.import_module(module).connect
        self.adapter = connect(target, **options)
        return self.adapter.version

    def do_pin(self, cores: list[int], other: int) -> None:
        """Every thread of this process, and those to come; and the other side, elsewhere."""
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), cores)
            except ProcessLookupError:  # it has ended
                pass
        self.adapter.place(other)

    def _mutex(self, name: str) -> Any:
        if name not in self.mutexes:
            self.mutexes[name] = self.adapter.make(name)
        return self.mutexes[name]

    def do_cycles(self, name: str, seconds: float) -> list[int]:
        return self.adapter.cycles(self._mutex(name), seconds)

    def do_make(self, name: str, waiters: list[int]) -> None:
        """The locks of the waiters of a contest: for some, each is a connection."""
        self.made = {waiter: self.adapter.make(name) for waiter in waiters}

    def do_contend(self, kind: str, order: dict[str, Any]) -> dict[str, Any]:
        its = work.Order(**order)
        meter = self._metered() if its.metered else None
        if kind == "tasks":
            return work.contend_tasks(self.adapter, its, meter)
        made, self.made = self.made, {}
        return work.contend_threads(self.adapter, its, meter, made)

    def do_take(self, name: str) -> None:
        """Hold a lock that is free."""
        if not self._mutex(name).acquire(5.0):
            raise RuntimeError(f"{name!r} is not free")

    def do_give(self, name: str) -> int:
        """Release it; when."""
        now = time.monotonic_ns()
        self._mutex(name).release()
        return now

    def do_stand(self, name: str, waiters: list[int], holder: str = "does nothing") -> None:
        """From now on these ask for it, each once."""
        order = work.Order(name, waiters, 0, 0, sys.maxsize, holder, once=True)
        self.standing = work.Waiters(self.adapter, order)

    def do_stood(self) -> list[Turn]:
        """Their turns, when all had theirs."""
        assert self.standing is not None
        return self.standing.turns()

    def do_cpu(self) -> float:
        """CPU seconds of this process so far."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def do_hold(self, number: int, rounds: int, trace: bool) -> dict[str, float]:
        return work.hold(self.adapter, number, rounds, trace, self._metered())

    def do_abreast(self, tasks: int, seconds: float) -> dict[str, Any]:
        """Tasks with a lock of their own each."""
        return work.abreast(self.adapter, tasks, seconds)

    def do_stripes(self, count: int, tasks: int, hold: float, seconds: float) -> int:
        """Tasks that take any of so many stripes, again and again; how often they had one."""
        return self.adapter.stripes(count, tasks, hold, seconds)

    def do_meter(self) -> Reading | None:
        """What the server had to do so far, if it keeps books."""
        meter = self._metered()
        return None if meter is None else meter.read()

    def _metered(self) -> Meter | None:
        if self.meter is None and self._server is not None:
            self.meter = meter_of(self._server)
        return self.meter

    def do_close(self) -> None:
        self.mutexes.clear()
        self.adapter.close()
        if self.meter is not None:
            self.meter.close()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent does
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a held file lock is an open file
    worker = Worker()
    for line in sys.stdin:
        command = json.loads(line)
        faulthandler.dump_traceback_later(command.pop("limit"), exit=True)
        try:
            name = command.pop("do")
            do: Callable[..., Any] | None = getattr(worker, f"do_{name}", None)
            if do is None:
                raise RuntimeError(f"no command {name!r}")
            answer = {"answer": do(**command)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
