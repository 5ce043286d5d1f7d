"""Nothing outlives the test runner: a helper process that cleans up after it, however it ended.

Contract: whatever was given to `watch_process` or `watch_directory` and not yet forgotten is
killed or removed when the process that gave it ends, be it by exit, SIGTERM or SIGKILL. Partner:
`base.py`.

Why not PR_SET_PDEATHSIG: it fires when the *thread* that forked ends, so a server restarted by a
fault-injecting thread would die with that thread; and it leaves the directories. The helper waits
on a pidfd, which is about the process. This file is both halves: a module, and the helper's
script.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

_LAST_WORDS_SECONDS = 5.0


class _Helper:
    """The runner's end of the pipe to its helper."""

    def __init__(self) -> None:
        self.runner = os.getpid()
        # Its own session: Ctrl-C in the terminal is for the runner, not for whoever cleans up.
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.runner)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd="/",
        )
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def tell(self, *words: str) -> None:
        assert self._popen.stdin is not None
        # One write below PIPE_BUF is atomic, so threads need no lock.
        self._popen.stdin.write(("\0".join(words) + "\n").encode())

    def end(self) -> None:
        # A forked child inherits this handler and the pipe, not the right to end these servers.
        if os.getpid() != self.runner or self._popen.stdin is None:
            return
        try:
            self.tell("end")
        except BrokenPipeError:
            pass
        self._popen.stdin.close()
        self._popen.wait()


_helper: _Helper | None = None
_helper_lock = threading.Lock()


def _current() -> _Helper:
    global _helper
    with _helper_lock:
        if _helper is None or _helper.runner != os.getpid():
            _helper = _Helper()
        return _helper


def pid() -> int:
    """The helper's own, for whoever looks after the children of this process."""
    return _current().pid


def watch_process(pid: int) -> None:
    """Kill this process, the leader of its own group, with the runner."""
    _current().tell("+process", str(pid), _started(pid))


def forget_process(pid: int) -> None:
    _current().tell("-process", str(pid))


def watch_directory(path: Path) -> None:
    """Remove this directory with the runner."""
    _current().tell("+directory", str(path))


def forget_directory(path: Path) -> None:
    _current().tell("-directory", str(path))


def _started(pid: int) -> str:
    """When a process started, empty when it is gone: a pid alone may by now be a stranger's."""
    try:
        # The second field is the program's name in brackets, and may hold brackets itself.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _clean_up(processes: dict[int, str], directories: set[str]) -> None:
    dying = select.poll()
    left = 0
    for pid, started in processes.items():
        try:
            pidfd = os.pidfd_open(pid)
            if started and _started(pid) == started:
                os.killpg(pid, signal.SIGKILL)
                dying.register(pidfd, select.POLLIN)
                left += 1
        except OSError:
            continue
    while left and (ended := dying.poll(_LAST_WORDS_SECONDS * 1000)):
        for pidfd, _ in ended:
            dying.unregister(pidfd)
            left -= 1
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _serve(runner: int) -> None:
    processes: dict[int, str] = {}
    directories: set[str] = set()
    events = select.poll()
    events.register(0, select.POLLIN)
    try:
        runner_end = os.pidfd_open(runner)
        events.register(runner_end, select.POLLIN)
    except ProcessLookupError:
        pass  # it is gone already: the pipe is at its end too
    pending = b""
    while True:
        ready = {fd for fd, _ in events.poll()}
        # The pipe first: what the runner said before it died still counts. The pipe's end alone
        # would not do as the signal, since a child that the runner forked holds it open.
        chunk = os.read(0, 65536) if 0 in ready else b""
        if not chunk:
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            match line.decode().split("\0"):
                case ["+process", pid, started]:
                    processes[int(pid)] = started
                case ["-process", pid]:
                    processes.pop(int(pid), None)
                case ["+directory", path]:
                    directories.add(path)
                case ["-directory", path]:
                    directories.discard(path)
                case ["end"]:
                    return _clean_up(processes, directories)
    return _clean_up(processes, directories)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
