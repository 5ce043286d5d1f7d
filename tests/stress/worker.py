"""A process that holds locks, in one of STYLES; killed and paused by `crew.py`.

    python -m tests.stress.worker URL FOLDER NUMBER SEED STYLE ACTORS PREFIX

Contract: reads one word a line on stdin: `fork`, `clock SECONDS` (its wall clock jumps), `stop`.
After `stop`, or when nobody can tell it any more, it finishes what it has begun and exits with 0.
A line on stderr is something that must not be. The main thread only listens and forks, so that a
child can leave Python by the ordinary way.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast import aio
from tests.stress import child
from tests.stress.actor import Actor, Ledger, problem
from tests.stress.record import Log, now
from tests.stress.resource import Resource
from tests.stress.turn import task_turn, turn

__all__ = ["STYLES"]

PR_SET_PDEATHSIG = 1
STYLES = ("threads", "guests", "tasks", "threads", "both", "guests")
"""Threads that share a client; threads that come and go, each with a client of its own; tasks;
threads and tasks. One for each process, and then again."""
GUESTS = 2
"""So few that often none of them is there."""
MOST_CHILDREN = 3
PATIENCE = 5.0


class Wall:
    """The wall clock, as this process sees it."""

    def __init__(self) -> None:
        self.ahead = 0.0
        seconds, nanoseconds = time.time, time.time_ns
        time.time = lambda: seconds() + self.ahead
        time.time_ns = lambda: nanoseconds() + int(self.ahead * 1e9)


class Worker:
    def __init__(self, url: str, folder: Path, number: int, seed: str, prefix: str) -> None:
        self.url = url
        self.folder = folder
        self.seed = f"{seed}:{number}"
        with holdfast.connect(url) as locks:
            modes = locks.capabilities.modes
        self.ledger = Ledger(
            Log(folder / f"worker-{number}.log"), Resource(folder, number), prefix, modes,
            forgetful=url.startswith("redlock:"),  # its nodes keep nothing when they are killed
        )  # fmt: skip
        self.stopping = False
        self.threads: list[threading.Thread] = []
        self.clients: list[holdfast.Locks | aio.Locks] = []
        self.children: dict[int, str] = {}

    def start(self, style: str, actors: int) -> None:
        if style in ("threads", "both"):
            locks = holdfast.connect(self.url)
            self.clients.append(locks)
            for index in range(actors):
                actor = Actor(self.ledger, f"{self.seed}:{index}")
                self._spawn(lambda actor=actor: self._thread(locks, actor))  # type: ignore[misc]
        if style == "guests":
            for index in range(GUESTS):
                guest = Actor(self.ledger, f"{self.seed}:{index}")
                self._spawn(lambda guest=guest: self._guest(guest))  # type: ignore[misc]
        if style in ("tasks", "both"):
            tasks = aio.connect(self.url)
            self.clients.append(tasks)
            self._spawn(lambda: asyncio.run(self._tasks(tasks, actors)))

    def _spawn(self, main: Callable[[], None]) -> None:
        thread = threading.Thread(target=main)
        thread.start()
        self.threads.append(thread)

    def _thread(self, locks: holdfast.Locks, actor: Actor) -> None:
        while not self.stopping:
            try:
                turn(actor, locks, actor.plan())
                time.sleep(actor.pause())
            except Exception:
                problem(traceback.format_exc())

    def _guest(self, actor: Actor) -> None:
        """The last client of a process closes what they shared, while the next one comes."""
        while not self.stopping:
            try:
                with holdfast.connect(self.url) as locks:
                    for _ in range(actor.random.randint(1, 2)):
                        turn(actor, locks, actor.plan())
                time.sleep(actor.pause())
            except Exception:
                problem(traceback.format_exc())

    async def _tasks(self, locks: aio.Locks, actors: int) -> None:
        async def main(actor: Actor) -> None:
            while not self.stopping:
                try:
                    await task_turn(actor, locks, actor.plan())
                    await asyncio.sleep(actor.pause())
                except Exception:
                    problem(traceback.format_exc())

        async with locks, asyncio.TaskGroup() as group:
            for index in range(actors):
                group.create_task(main(Actor(self.ledger, f"{self.seed}:t{index}")))

    # -- the main thread --------------------------------------------------------------------------

    def obey(self, wall: Wall) -> None:
        """Until it is told to stop."""
        rest = b""
        while True:
            if select.select([0], [], [], 0.1)[0]:
                data = os.read(0, 4096)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    word, _, value = line.decode().partition(" ")
                    if word == "clock":
                        wall.ahead += float(value)
                    elif word == "fork":
                        self._fork(value)
                if not data or b"stop" in lines:
                    return
            self._reap(os.WNOHANG)

    def _fork(self, seed: str) -> None:
        if len(self.children) >= MOST_CHILDREN:
            return
        locks = self.clients[len(self.children) % len(self.clients)] if self.clients else None
        pid = os.fork()
        if not pid:
            child.live(self.ledger, locks, self.url, self.folder, f"{self.seed}:f{seed}")
        self.children[pid] = seed

    def _reap(self, how: int) -> None:
        for pid in list(self.children):
            ended, status = os.waitpid(pid, how)
            if ended:
                del self.children[pid]
                if status:
                    problem(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")

    def finish(self) -> None:
        self.stopping = True
        for thread in self.threads:
            thread.join()
        for locks in self.clients:
            if isinstance(locks, holdfast.Locks):
                self._settled(locks)
        with holdfast.connect(self.url) as fresh:
            self._nothing_left(fresh)
        for locks in self.clients:
            if isinstance(locks, holdfast.Locks):
                locks.close()
        self._reap(0)

    def _settled(self, locks: holdfast.Locks) -> None:
        keeper = locks._current.keeper
        deadline = now() + PATIENCE
        while not keeper.idle:
            time.sleep(0.001)
            if now() > deadline:
                problem(f"{len(keeper._owed)} clean-ups are still owed after {PATIENCE} s")
                return

    def _nothing_left(self, locks: holdfast.Locks) -> None:
        """A client that owes nothing has left nothing in the store, and no lease has to expire for
        it: this process is alive, so nobody clears up after it (laws 3 and 4)."""
        me = str(os.getpid())
        for info in locks.inspect(self.ledger.prefix):
            for claim in (*info.holders, *info.waiters):
                if claim.info.get("pid") == me:
                    problem(f"everybody is done, and left in {info.name}: {claim}")


def main(
    url: str, folder: str, number: str, seed: str, style: str, actors: str, prefix: str
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also if it is stopped then
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.ERROR)  # a loss is none; what the keeper did not expect is
    warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads: the point of it
    wall = Wall()
    # Loads the backend. Who forks while another thread imports a module for the first time has a
    # child in which that module's import lock is held for ever: CPython's limit, not tried here.
    holdfast.connect(url).close()
    worker = Worker(url, Path(folder), int(number), seed, prefix)
    worker.start(style, int(actors))
    worker.obey(wall)
    worker.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
