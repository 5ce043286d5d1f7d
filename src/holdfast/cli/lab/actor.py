"""A process of `holdfast lab`: it does with its form of the lock what it is told, and says what
happened, when it happened.

Contract: lines of JSON in both directions. Each line out has the moment (CLOCK_BOOTTIME, which all
processes of a host share) and what happened; nothing is said that did not happen here. Ends when
its input ends; the kernel kills it if the director dies. Partners: `troupe.py`, `scene.py`.

Before it says "ready" it takes the lock and gives it back once, so that connections are open and
scripts loaded: the fault then strikes what it is meant for.

A wrong wall clock is one that Python tells: `time.time` and its kin are moved in this process,
before a form, a backend or its client is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.cli import kernel
from holdfast.cli.lab.level import LockForm
from holdfast.cli.lab.resp import RedisError
from holdfast.cli.outcome import report

__all__ = ["main"]


def say(what: str, **figures: Any) -> None:
    line = json.dumps({"at": kernel.now(), "what": what, **figures})
    os.write(1, line.encode() + b"\n")


def main() -> None:
    told = json.loads(sys.stdin.readline())
    kernel.die_with_parent(told["director"])
    part = told["with"]
    if part["clock"]:
        set_clock(part["clock"])
    try:
        play(told, part)
    except Exception as error:  # noqa: BLE001 - a traceback of Python's own would not be redacted
        sys.exit(report(error, str(part["url"])))
    os._exit(0)  # whatever is still held is the scene's to end


def play(told: dict[str, Any], part: dict[str, Any]) -> None:
    from holdfast.cli.lab.levels import LEVELS

    forms = {form.name: form for form in LEVELS[str(part["level"])].forms}
    form = forms[str(part["form"])]
    lock = form.make(part["url"], part["lock"], told["name"], part["ttl"])
    if part["warm"] and lock.acquire(5.0):
        lock.release()
    lock.on_lost = lambda: say("lost")
    say("ready")
    for line in sys.stdin:
        obey(lock, json.loads(line))


def obey(lock: LockForm, order: dict[str, Any]) -> None:
    match order["do"]:
        case "ask":
            ask(lock, order["patience"], order["attempt"])
        case "look":
            say("look", held=lock.held)
        case "write":
            say("write", fence=lock.fence)
        case "release":
            say("free")
            answered("released", lambda: {"kept": lock.release()})
        case other:
            raise ValueError(other)


def ask(lock: LockForm, patience: float, attempt: bool) -> None:
    say("wait", clock=time.time())

    def taken() -> dict[str, Any]:
        got = False
        if attempt:
            got = lock.attempt()
            if not got:
                say("refused")
        if not (got or lock.acquire(patience)):
            return {"what": "gave up"}
        return {"fence": lock.fence}

    answered("hold", taken)


def answered(what: str, request: Callable[[], dict[str, Any]]) -> None:
    try:
        figures = request()
    except (holdfast.HoldfastError, RedisError, OSError) as error:
        say("failed", error=f"{type(error).__name__}: {error}")
    else:
        say(**{"what": what, **figures})


def set_clock(ahead: float) -> None:
    """The wall clock of this process is so many seconds ahead of the host's."""
    nanoseconds = int(ahead * 1e9)
    real, real_ns = time.time, time.time_ns
    read, read_ns = time.clock_gettime, time.clock_gettime_ns
    time.time = lambda: real() + ahead
    time.time_ns = lambda: real_ns() + nanoseconds
    time.clock_gettime = lambda clock: read(clock) + ahead * (clock == time.CLOCK_REALTIME)
    time.clock_gettime_ns = lambda clock: (
        read_ns(clock) + nanoseconds * (clock == time.CLOCK_REALTIME)
    )


if __name__ == "__main__":
    main()
