"""Other processes that tests tell what to do: a line of Python at a time.

    with Peer(url) as peer:
        assert peer.run("(lease := locks.lock('x').acquire()) is not None")
        peer.kill()

Contract: `run` waits for the value (as JSON) or raises what went wrong there; `start` does not
wait, `result` does. Only processes that were started here are ended, and all of them are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from tests.servers.base import stopped
from tests.waiting import until

PATIENCE = 60.0
"""For a process to start, too. What must come soon says so itself, by a shorter `timeout`."""

SCRIPT = """
import json, os, signal, sys, threading, time
import holdfast
signal.signal(signal.SIGINT, signal.default_int_handler)
locks = holdfast.connect(sys.argv[1])
held = []
print(json.dumps({"value": os.getpid()}), flush=True)
for line in sys.stdin:
    try:
        code = json.loads(line)
        try:
            value = eval(code)
        except SyntaxError:
            value = exec(code)
        answer = {"value": value}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer, default=repr), flush=True)
"""


class PeerError(Exception):
    """What was raised in the other process."""


class Peer:
    def __init__(self, url: str, *before: str) -> None:
        """`before`: a command in front of the interpreter, for example unshare."""
        self._process = subprocess.Popen(
            [*before, sys.executable, "-c", SCRIPT, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.pid: int = self.result()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def start(self, code: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        watchdog = threading.Timer(PATIENCE, self._process.kill)
        watchdog.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
            watchdog.join()
        if not line:
            raise PeerError("it died, or did not answer")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["value"]

    def run(self, code: str) -> Any:
        self.start(code)
        return self.result()

    def acquire(self, expression: str, **options: Any) -> None:
        """Take a lock there and keep the lease."""
        taken = f"bool(held.append(locks.{expression}.acquire(timeout=10)) or held[-1])"
        assert self.run(taken), f"{expression} was not acquired"

    def wait_for(self, expression: str) -> None:
        """Begin to take a lock there; `result()` is True when it is held."""
        self.start(f"bool(held.append(locks.{expression}.acquire(timeout=15)) or held[-1])")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)  # not of the process in front of it
        if number is signal.SIGSTOP:  # else one of its threads may go on for a moment
            until(lambda: stopped(self.pid), "it stops")

    def kill(self) -> None:
        if self._process.poll() is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait(PATIENCE)
