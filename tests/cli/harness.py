"""Running the command line as users do: a process, or a process at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.cli import kernel
from tests import waiting

ROOT = Path(__file__).resolve().parent.parent.parent
CLI = (sys.executable, "-m", "tests.cli.launch")
PATIENCE = 100.0
"""For what must happen. Long, because the machine may be busy; nothing waits for it to pass."""


def environment(url: str | None = None, **changes: str) -> dict[str, str]:
    """As clean as a new login: nothing of the tests' own shell."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST", "_HOLDFAST"))}
    kept |= {"PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHONWARNINGS": "error", **changes}
    kept.pop("COLUMNS", None)
    if url is not None:
        kept["HOLDFAST_URL"] = url
    return kept | changes


def holdfast(
    *arguments: str, url: str | None = None, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*CLI, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=environment(url, **(env or {})),
        **{"stdin": subprocess.DEVNULL, **more},
    )


@contextmanager
def started(
    *arguments: str, url: str | None = None, env: Mapping[str, str] | None = None, **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start it in a process group of its own; at the end nothing of it is left."""
    process = subprocess.Popen(
        [*CLI, *arguments],
        env=environment(url, **(env or {})),
        text=True,
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "process_group": 0,
            "preexec_fn": _plain_signals,
            **more,
        },
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _plain_signals() -> None:
    # Whoever runs the tests in the background of a shell has us inherit an ignored Ctrl-C; with
    # nohup, an ignored hang-up.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


until = partial(waiting.until, patience=PATIENCE)
"""Interpreters have to start."""


def alive(pid: int) -> bool:
    return kernel.process_state(pid) not in ("", "Z")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def line(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


class Terminal:
    """A program at a terminal of 80 columns, as its session's leader."""

    def __init__(
        self, *command: str, env: Mapping[str, str], columns: int = 80, rows: int = 24
    ) -> None:
        self.said = ""
        self.status: int | None = None
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            try:
                _plain_signals()
                os.execvpe(command[0], list(command), dict(env))
            finally:
                os._exit(127)
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def listens(self, pid: int) -> bool:
        """Whether what is typed now is for that process."""
        return os.tcgetpgrp(self._file) == os.getpgid(pid) and not kernel.stopped(pid)

    def _said_more(self, patience: float) -> bool:
        poll = select.poll()  # not `select`: who has run many tests may have many files
        poll.register(self._file, select.POLLIN)
        return bool(poll.poll(patience * 1000))

    def read(self, patience: float = 0.05) -> bool:
        """Take in what was printed; False at the end."""
        if not self._said_more(patience):
            return True
        try:
            data = os.read(self._file, 65536)
        except OSError:  # nobody has the other side open any more
            return False
        self.said += data.decode(errors="replace")
        return bool(data)

    def expect(self, pattern: str, patience: float = PATIENCE) -> re.Match[str]:
        """Read until it matches; what matched is not looked at again."""
        deadline = time.monotonic() + patience
        while not (found := re.search(pattern, self.said, re.S)):
            assert self.read(), f"ended before it said {pattern!r}: {self.said!r}"
            assert time.monotonic() < deadline, f"never said {pattern!r}: {self.said!r}"
        self.said = self.said[found.end() :]
        return found

    def wait(self) -> int:
        """Read to the end; the exit status as a shell counts it."""
        deadline = time.monotonic() + PATIENCE
        while self.status is None:
            assert time.monotonic() < deadline, f"does not end; said {self.said!r}"
            if not self.read():
                time.sleep(0.005)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code
        while self.read(0) and self._said_more(0):
            pass
        return self.status

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.status is None:
            for pid in (*kernel_children(self.pid), self.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._file)


def kernel_children(pid: int) -> list[int]:
    """A process's descendants."""
    found = kernel._children(pid)
    for child in found:
        found += kernel._children(child)
    return found
