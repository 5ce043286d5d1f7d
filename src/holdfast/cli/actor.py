"""A process of `holdfast demo`: it asks for locks, and says what happens to it, when it happens.

Contract: lines of JSON in both directions. Each line out has the moment (CLOCK_BOOTTIME, which all
processes of a host share), what happened, and figures; nothing is said that did not happen here.
Ends when its input ends, and is killed by the kernel if the director dies while it is stopped.
Partner: `demo.py`, the director.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import sys
import threading
from typing import Any

import holdfast
from holdfast.cli import kernel

__all__ = ["main"]


class Actor:
    def __init__(self, name: str, locks: holdfast.Locks) -> None:
        self._name = name
        self._locks = locks
        self._told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._long = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, what: str, **figures: Any) -> None:
        line = json.dumps({"at": kernel.now(), "what": what, **figures})
        os.write(1, line.encode() + b"\n")

    def _listen(self) -> None:
        for line in sys.stdin:
            match json.loads(line):
                case {"do": "stop"}:
                    self._stop.set()
                case {"do": "hold long"}:
                    self._long.set()
                case other:
                    self._told.put(other)
        self._stop.set()
        self._told.put(None)

    def hear(self) -> dict[str, Any]:
        told = self._told.get()
        if told is None:
            sys.exit(0)
        return told

    def worker(self, name: str, ttl: float, shortest: float, longest: float) -> None:
        """Ask for the lock, work under it, and ask again."""
        for turn in itertools.count():
            if self._stop.is_set():
                return
            self.say("wait", turn=turn)
            whose = {"worker": self._name, "turn": str(turn)}
            with self._locks.lock(name, ttl=ttl, metadata=whose) as lease:
                self.say("hold", turn=turn, fence=lease.fence)
                if self._long.is_set():
                    self._stop.wait(60)
                self._stop.wait(random.uniform(shortest, longest))
                self.say("free", turn=turn)
            self._stop.wait(random.uniform(0.0, longest))

    def writer(self, name: str, ttl: float, amount: int) -> None:
        """Take the lock, read the balance, and write another one when told to go on. What the
        lease says is said, and not obeyed: this one is careless, so that the token is all."""
        self.say("wait")
        lease = self._locks.lock(name, ttl=ttl).acquire()
        assert lease is not None
        self.say("hold", fence=lease.fence)
        balance = int(self.hear()["balance"])
        self.hear()
        self.say("look", held=lease.held)
        self.say("write", fence=lease.fence, balance=balance + amount)
        self.hear()
        self.say("free", kept=lease.release())


def main() -> None:
    told = json.loads(sys.stdin.readline())
    kernel.die_with_parent(told["director"])
    with holdfast.connect(told["url"], label=told["name"]) as locks:
        actor = Actor(told["name"], locks)
        actor.say("ready")
        actor.hear()
        getattr(actor, told["role"])(**told["with"])
    actor.say("done")


if __name__ == "__main__":
    main()
