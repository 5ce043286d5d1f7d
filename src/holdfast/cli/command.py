"""The command's process: forked before there is a lock, or a thread; executed when there is one.

Contract: the process exists from the start and waits to be told the fencing token; then it is
executed in its place. So nothing is forked from a process with threads, and the kernel kills it
when the warden dies, from its first moment on. It stays in the process group and session that it
would have had without holdfast: terminals, pipelines and job control work as ever.
Partner: `warden.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from holdfast.cli import kernel
from holdfast.cli.link import FORWARDED
from holdfast.cli.outcome import NOT_EXECUTABLE, NOT_FOUND, Ended

__all__ = ["Command", "check_executable"]

ARMED = b"A"
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; programs expect them as they were."""


def check_executable(program: str) -> None:
    """Say now what would otherwise be said after hours of waiting for the lock."""
    if shutil.which(program) is None:
        folder = os.sep in program
        raise cannot_run(program, errno.EACCES if folder and os.path.exists(program) else 0)


def cannot_run(program: str, number: int) -> Ended:
    if number in (0, errno.ENOENT, errno.ENOTDIR):
        hint = "Is it spelt right, and installed where PATH leads?"
        return Ended(NOT_FOUND, f"the command {program!r} was not found. {hint}")
    why = os.strerror(number)
    hint = "A script needs its x bit (chmod +x) and a first line such as #!/bin/sh"
    return Ended(NOT_EXECUTABLE, f"the command {program!r} could not be executed: {why}. {hint}")


class Command:
    """As the warden sees it. While `reporting`, `report` becomes readable when it has news."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        mask: set[int],
        ignored: frozenset[int],
    ) -> None:
        """Forks. `mask` and `ignored`: the signals that were blocked and ignored before holdfast
        touched any; the command shall find them so."""
        self.arguments = arguments
        self.armed = False  # from here on signals that reach the process are the command's
        self.reporting = True
        self.status: int | None = None  # as a shell counts: 128 + n for signal n
        waits, self._go = os.pipe()
        self.report, tells = os.pipe()
        warden = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if kernel.die_with_parent(warden):
                    os.close(self._go)  # else nobody would tell us of the warden's end
                    _become(arguments, environment, waits, tells, mask, ignored)
            finally:  # whatever happened: there shall not be a second warden
                os._exit(NOT_EXECUTABLE)
        os.close(waits)
        os.close(tells)

    def begin(self, fence: int | None) -> None:
        os.write(self._go, b"\n" if fence is None else f"{fence}\n".encode())

    def news(self) -> bool:
        """Read the report. True: it was executed just now. Raises `Ended` if that failed."""
        data = os.read(self.report, 64)
        self.reporting = bool(data)
        if data.startswith(ARMED):
            self.armed = True
            data = data.removeprefix(ARMED)
        if data:
            raise cannot_run(self.arguments[0], int(data))
        return self.armed and not self.reporting

    def signal(self, number: int) -> None:
        if self.status is None:  # not yet waited for, so the number is still its own
            kernel.signal_all(number, [self.pid])

    def ended(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.status = code if code >= 0 else 128 - code


def _become(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    waits: int,
    tells: int,
    mask: set[int],
    ignored: frozenset[int],
) -> None:
    """The life of the new process until it is another program."""
    ours = [number for number in FORWARDED if number not in ignored]
    # What comes while we wait for the lock is not the command's: it is dropped, neither kept for
    # it nor the end of this process. Only a stop of the whole job stops this process as well.
    for number in ours:
        if number != signal.SIGTSTP:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    told = os.read(waits, 64)
    if not told:  # given up
        os._exit(0)
    # From here on nothing may get lost: blocked, so kept until the command has been executed.
    signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    for number in (*ours, *RESTORED):
        signal.signal(number, signal.SIG_DFL)
    fence = told.decode().strip()
    environment = {**environment, **({"HOLDFAST_FENCE": fence} if fence else {})}
    os.write(tells, ARMED)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(arguments[0], list(arguments), environment)
    except OSError as error:
        os.write(tells, str(error.errno).encode())
