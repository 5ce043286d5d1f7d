"""The first process of `holdfast run`: what the shell sees. Partner: `warden.py` (laws there).

Contract: it forks the warden, passes on signals that were sent to it alone, stops and goes on with
the command (Ctrl-Z, fg), and ends with the warden's status. It is also the second pair of eyes:
when the warden dies, or stands still while the lease runs out, it ends the command and all below.

It is the process's last act: signals stay blocked, so that one which comes late changes nothing.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys

from holdfast.cli import kernel
from holdfast.cli.link import FATAL, FORWARDED, Kind, Link
from holdfast.cli.outcome import FAILED, LOST, say
from holdfast.cli.plan import Plan
from holdfast.cli.warden import KILL_PATIENCE, keep

__all__ = ["run_guarded"]

POLITE = 0.5
"""Giving up leaves nothing in the store, and takes a moment; who asks again after so long gets an
end at once."""


def run_guarded(plan: Plan) -> int:
    """Run the plan's command under its lock; the exit status."""
    _open_standard_files()
    ignored = frozenset(
        number
        for number in (*FORWARDED, signal.SIGCHLD)
        if signal.getsignal(number) is signal.SIG_IGN
    )
    ours = {signal.SIGCHLD, *FORWARDED} - (ignored - {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children could not be waited for
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ours)}
    spare = frozenset(kernel.descendants())  # of whoever executed us in its own place
    here, there = Link.pair()
    deadline = kernel.Deadline()
    warden = os.fork()
    if warden == 0:
        status = FAILED
        try:
            here.close()  # else its end would never be the end of the line
            status = keep(plan, there, deadline, kernel.SignalFile(ours), mask, ignored)
            for file in (sys.stdout, sys.stderr):
                if file:
                    file.flush()
        finally:
            os._exit(status)
    there.close()
    kernel.adopt_orphans()
    try:
        return Front(plan, warden, here, deadline, kernel.SignalFile(ours), spare).run()
    finally:
        here.close()


class Front:
    def __init__(
        self,
        plan: Plan,
        warden: int,
        link: Link,
        deadline: kernel.Deadline,
        signals: kernel.SignalFile,
        spare: frozenset[int],
    ) -> None:
        self._plan = plan
        self._warden = warden
        self._link = link
        self._deadline = deadline
        self._signals = signals
        self._spare = spare
        self._started = False
        self._status: int | None = None  # of a command that has ended
        self._asked = math.inf  # when a signal asked us to give up before the command began
        self._abandoned = 0  # the signal that had to ask again

    def run(self) -> int:
        poll = select.poll()
        poll.register(self._signals.fileno(), select.POLLIN)
        poll.register(self._link.fileno(), select.POLLIN)
        while True:
            left = self._deadline.moment - kernel.now()
            poll.poll(min(500, max(0, math.ceil(1000 * left)) if left < math.inf else 500))
            # Signals first: the warden relies on hearing of a signal before its answer.
            for arrival in self._signals.read():
                self._arrived(*arrival)
            messages, gone = self._link.receive()
            for kind, number in messages:
                if kind is Kind.ASK:
                    self._link.send(Kind.ANSWER, number)
                elif kind is Kind.STARTED:
                    self._started = True
                elif kind is Kind.ENDED:
                    self._status = number
                elif kind is Kind.STOPPED and _has_terminal() and kernel.stopped(number):
                    self._stop()
            if gone:
                return self._ended()
            if kernel.now() >= self._deadline.moment:
                return self._cut("holdfast stood still while the lock ran out")

    def _arrived(self, number: int, by_process: bool, sender: int) -> None:
        # Not to be sent back: with CONT the warden wakes us after it has seen the command go on.
        if by_process and number != signal.SIGCHLD and sender != self._warden:
            self._link.send(Kind.SIGNAL, number)
        if number in FATAL and not self._started:
            self._asked = min(self._asked, kernel.now())
            if kernel.now() - self._asked > POLITE:
                self._abandoned = number
                os.kill(self._warden, signal.SIGKILL)

    def _stop(self) -> None:
        """The command has stopped: so do we, for the shell to see it; `fg` makes both go on.

        Not on Ctrl-Z itself: the command may ignore it, or put the terminal in order first.
        """
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})

    def _ended(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self._warden, 0)[1])
        if code >= 0:
            return code
        if self._abandoned:
            kernel.end_descendants(KILL_PATIENCE, self._spare)
            return 128 + self._abandoned
        return self._bury(f"holdfast itself was ended by signal {-code}")

    def _cut(self, why: str) -> int:
        if self._status is None:
            # Before the warden: some stores free the lock in the moment in which it dies.
            kernel.end_below(self._warden, KILL_PATIENCE)
        os.kill(self._warden, signal.SIGKILL)
        os.waitpid(self._warden, 0)
        if self._status is not None:
            say("giving the lock back takes too long; the store frees it by itself")
            return self._status
        return self._bury(why)

    def _bury(self, why: str) -> int:
        left = kernel.end_descendants(KILL_PATIENCE, self._spare)
        stuck = f", except {', '.join(map(str, left))}, which cannot be" if left else ""
        say(f"{why}: the command was killed{stuck}; the store frees {self._plan.name!r} by itself")
        return LOST


def _open_standard_files() -> None:
    """Flush what is written; and where one was closed, have something else than our own files."""
    for number, file in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if file:
            file.flush()
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number


def _has_terminal() -> bool:
    """Whether there is a terminal, and so a shell with jobs that stop and go on."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
