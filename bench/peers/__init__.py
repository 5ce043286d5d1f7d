"""The registry of what can be measured beside holdfast: a peer is one module and one line here.

Contract: nothing here imports a peer. `requires` names the one package, with its version, that the
peer's own environment has (`envs.py`); without it the peer needs the standard library only. `kinds`
says which waiters it can serve. Floors are peers too: they do the least that could do the job.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVERY", "FLOORS", "KINDS", "PEERS", "PROCESSES", "TASKS", "THREADS", "Peer"]

THREADS, PROCESSES, TASKS = "threads", "processes", "tasks"
KINDS = (THREADS, PROCESSES, TASKS)


@dataclass(frozen=True)
class Peer:
    module: str  # below bench.peers
    kinds: tuple[str, ...]
    target: str = "{folder}"
    requires: str | None = None


_FILES = (THREADS, PROCESSES)

PEERS: dict[str, Peer] = {
    "filelock": Peer("filelock", _FILES, requires="filelock==4.2.10"),
    "portalocker": Peer("portalocker", _FILES, requires="portalocker==4.4.2"),
    "flock": Peer("flock", _FILES),
    "threading.Lock": Peer("in_process", (THREADS,), "threading.Lock"),
    "asyncio.Lock": Peer("in_process", (TASKS,), "asyncio.Lock"),
}
"""What people use instead; `--peer` chooses among these."""

FLOORS: dict[str, Peer] = {
    "loopback round trips": Peer("loopback", (THREADS,)),
    "two SQLite statements": Peer("statements", (THREADS,)),
    "FIFO of bare locks": Peer("in_process", (THREADS,), "fifo"),
}
"""What a scenario compares with beside them."""

EVERY = PEERS | FLOORS
