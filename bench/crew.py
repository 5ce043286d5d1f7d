"""The parent's side of workers: start them, place them on cores, ask them, end them.

Contract: a crew is the worker processes of one entrant. Every command has a limit, after which the
worker ends itself; leaving the crew's `with` ends every process that it started, by its id,
whatever it is doing. A peer that fails is out, and its `failed` says why: the others go on.
Partner: `bench/worker.py` has the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.entrants import Entrant

__all__ = ["PLACEMENTS", "SAME", "SPLIT", "Crew", "Worker", "cores", "crews", "failures"]

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 60.0

SAME, SPLIT = "same core", "split cores"
PLACEMENTS = (SAME, SPLIT)
"""Everything on one core; or processes (of a single process: its waiters) in turn on two, and a
server on another core than its first client. Waking somebody on another core takes several times
as long as on one's own, so figures of a run that is not pinned are a mixture of the two."""


def cores() -> tuple[int, int]:
    """Two cores to pin to; the same one twice on a machine that has only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


class Worker:
    """One process."""

    def __init__(self, entrant: Entrant) -> None:
        self._who = entrant.label
        self.process = subprocess.Popen(
            [entrant.python, "-m", "bench.worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell(
            "open",
            module=entrant.module,
            target=entrant.target,
            options=entrant.options,
            meter=None if entrant.server is None else entrant.server.books,
        )

    def tell(self, do: str, *, limit: float = LIMIT, **said: Any) -> None:
        assert self.process.stdin is not None
        self._limit, self._asked = limit, do
        try:
            self.process.stdin.write(json.dumps({"do": do, "limit": limit, **said}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise RuntimeError(f"{self._who}: the worker has ended") from None

    def hear(self) -> Any:
        """The answer to what it was told."""
        assert self.process.stdout is not None
        # One answer to one command: nothing can be left in Python's buffer, so poll can tell. (Not
        # select, which knows no descriptor over 1023.)
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        line = self.process.stdout.readline() if poll.poll((self._limit + 10) * 1000) else ""
        if not line:
            raise RuntimeError(f"{self._who}: no answer to {self._asked!r}; the worker has ended")
        said = json.loads(line)
        if "error" in said:
            raise RuntimeError(f"{self._who}: {self._asked} failed\n{said['error']}")
        return said["answer"]

    def ask(self, do: str, *, limit: float = LIMIT, **said: Any) -> Any:
        self.tell(do, limit=limit, **said)
        return self.hear()

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()


class Crew:
    """The workers of one entrant; all are asked the same, or each its own."""

    failed = ""  # why it is out

    def __init__(self, entrant: Entrant, size: int = 1) -> None:
        self.entrant = entrant
        self.workers: list[Worker] = []
        self.version = ""
        try:
            self.tried(lambda _: self._open(size))
        except BaseException:
            self.end()
            raise

    def _open(self, size: int) -> None:
        for _ in range(size):
            self.workers.append(Worker(self.entrant))
        self.version = self.hear()[0]

    def tried(self, run: Callable[[Crew], T]) -> T | None:
        """What it answers; None: it is a peer that has failed, now or before."""
        if self.failed:
            return None
        try:
            return run(self)
        except RuntimeError as error:
            if self.entrant.scheme:
                raise
            lines = str(error).strip().splitlines()
            self.failed = lines[-1][:200] if lines else "no reason was given"
            self.end()
            return None

    def tell(self, do: str, **said: Any) -> None:
        if self.failed:
            raise RuntimeError(self.failed)
        for worker in self.workers:
            worker.tell(do, **said)

    def hear(self) -> list[Any]:
        return [worker.hear() for worker in self.workers]

    def ask(self, do: str, **said: Any) -> list[Any]:
        self.tell(do, **said)
        return self.hear()

    def shared_out(self, waiters: int) -> list[list[int]]:
        """Numbered waiters, as evenly as it goes."""
        return [list(range(n, waiters, len(self.workers))) for n in range(len(self.workers))]

    def ask_each(self, do: str, said: Sequence[dict[str, Any]], limit: float = LIMIT) -> list[Any]:
        """Every worker its own."""
        if self.failed:
            raise RuntimeError(self.failed)
        for worker, its in zip(self.workers, said, strict=True):
            worker.tell(do, limit=limit, **its)
        return self.hear()

    def place(self, placement: str) -> None:
        self.tried(lambda _: self._place(placement))

    def _place(self, placement: str) -> None:
        first, second = cores()
        for number, worker in enumerate(self.workers):
            here, other = (first, second) if number % 2 == 0 else (second, first)
            if placement == SAME:
                here = other = first
            worker.ask("pin", cores=[here], other=other)
        if self.entrant.server is not None:
            self.entrant.server.place(first if placement == SAME else second)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            if exc_info[0] is None:
                self.tried(lambda _: self.ask("close"))
        finally:
            self.end()


@contextlib.contextmanager
def crews(entrants: Sequence[Entrant], size: int = 1) -> Iterator[list[Crew]]:
    """One for each entrant."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Crew(entrant, size)) for entrant in entrants]


def failures(crews: Sequence[Crew]) -> dict[str, str]:
    """Who is out, and why."""
    return {crew.entrant.label: crew.failed for crew in crews if crew.failed}
