"""The second process of `holdfast run`: it holds the lock, and the command does not outlive it.

The shell's child is the *front* (`front.py`), which Ctrl-Z stops together with the command. Its
child is this process, which keeps renewing then, and is the parent of the command (`command.py`).

Laws:
1. The command begins after the lock was granted and has ended before it is given back.
2. With --on-lost=kill the command and all its descendants have ended before the lease has, by the
   clock of this host. A lease that is not renewed ends at a known moment, so TERM comes a notice
   and KILL a margin *before* it. A lease that the store itself ended (evicted, forgotten) is over
   when we hear of it: then KILL comes at once.
3. If the front dies, the command is ended and the lock given back. If this process dies, the kernel
   kills the command, and the front its descendants. If it is stopped, the front sees the deadline
   pass that we share, and does the same.
4. The command gets each signal once, whether it was sent to us, to the front, to the process group
   or typed at the terminal.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
from dataclasses import dataclass

import holdfast
from holdfast.cli import kernel
from holdfast.cli.command import Command
from holdfast.cli.link import FATAL, Kind, Link
from holdfast.cli.outcome import BUSY, LOST, Ended, report, say
from holdfast.cli.plan import Plan

__all__ = ["KILL_PATIENCE", "keep"]

KILL_PATIENCE = 5.0
"""A killed process may take a moment to go (it waits for a disk); so long we wait for it."""

ANSWER_PATIENCE = 0.5
"""The front answers at once, unless it was stopped; or the machine is busy, which is told apart."""

BUSY_PATIENCE = 10.0
"""So long one that runs is waited for: a signal that it has as well would arrive twice."""

WAITING_IS_SAID_AFTER = 1.0

FAREWELL = 20.0
"""Releasing and closing each have a time limit; if a store's client has none, the front has."""


def keep(
    plan: Plan,
    link: Link,
    deadline: kernel.Deadline,
    signals: kernel.SignalFile,
    mask: set[int],
    ignored: frozenset[int],
) -> int:
    """The whole life of this process; returns the exit status of `holdfast run`."""
    try:
        # A terminal stops whole groups, this process with them, when the command reads in the
        # background. But a lock is not renewed by a process that has stopped.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})
        kernel.adopt_orphans()
        environment = {**os.environ, "HOLDFAST_NAME": plan.name}
        environment.pop("HOLDFAST_FENCE", None)  # of a `holdfast run` around this one
        command = Command(plan.arguments, environment, mask, ignored)  # before there are threads
        with holdfast.connect(plan.url) as locks:
            if not locks.capabilities.cross_process:
                raise holdfast.Misconfigured(
                    "this store lives in the memory of one process: a lock of it would keep nobody "
                    "else out. Name a store that all of them reach, with --url or HOLDFAST_URL"
                )
            try:
                status = Warden(plan, locks, command, link, deadline, signals).run()
            except BaseException as error:  # noqa: BLE001 - reported, and this process ends
                kernel.end_descendants(KILL_PATIENCE)  # law 1, whatever went wrong
                status = report(error, plan.url)
            # Nothing runs any more. Giving back may take a moment, and not for ever.
            deadline.moment = kernel.now() + FAREWELL
            link.send(Kind.ENDED, status)
        return status
    except BaseException as error:  # noqa: BLE001 - reported, and this process ends
        return report(error, plan.url)


@dataclass(slots=True, eq=False)
class Mine:
    """A signal that a process has sent to the warden. Whether to it alone, the front can tell."""

    number: int
    since: float
    shared: bool = False


class Warden:
    def __init__(
        self,
        plan: Plan,
        locks: holdfast.Locks,
        command: Command,
        link: Link,
        deadline: kernel.Deadline,
        signals: kernel.SignalFile,
    ) -> None:
        self._plan = plan
        self._locks = locks
        self._command = command
        self._link = link
        self._deadline = deadline
        self._signals = signals
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._taken: holdfast.Lease | holdfast.Permit | BaseException | None = None
        self._lease: holdfast.Lease | holdfast.Permit | None = None
        self._waiting = True
        self._waiting_said = plan.quiet_busy or not os.isatty(2)
        self._began = kernel.now()
        self._loss: holdfast.LeaseLost | None = None
        self._warned = False
        self._kill_at = math.inf  # set when the command was asked to stop
        self._mine: list[Mine] = []

    # -- other threads ----------------------------------------------------------------------------

    def _take(self) -> None:
        """Wait for the lock, beside the loop: closing the client ends this."""
        plan = self._plan
        try:
            self._taken = lease = plan.lock(self._locks, self._lost).acquire(timeout=plan.timeout)
            if lease is not None and lease.remaining() < plan.ttl / 2:
                lease.renew()  # it was handed to us a while ago: begin with a whole one
        except BaseException as error:  # noqa: BLE001 - raised again where it can be reported
            self._taken = error
        self._waiting = False
        self._wake()

    def _lost(self, loss: holdfast.LeaseLost) -> None:
        self._loss = loss
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._waker, b"!")
        except BlockingIOError:  # woken already
            pass

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> int:
        threading.Thread(target=self._take, daemon=True).start()
        while self._command.status is None:
            self._sleep()
            # In this order: what the front was sent before it told us, we have too by now, if it
            # was sent to the group; and what came before the command was armed was not its own.
            messages, gone = self._link.receive()
            for arrival in self._signals.read():
                self._arrived(*arrival)
            for message in messages:
                self._told(*message)
            self._answer_for_the_front()
            if gone:
                raise Ended(LOST, "`holdfast run` was killed: so was the command; the lock is free")
            if self._lease is None and not self._waiting:
                self._granted()
            if self._readable(self._command) and self._command.news():
                self._link.send(Kind.STARTED, self._command.pid)
            self._look()
        return self._finish(self._command.status)

    def _sleep(self) -> None:
        poll = select.poll()
        for file in (self._signals.fileno(), self._link.fileno(), self._woken):
            poll.register(file, select.POLLIN)
        if self._command.reporting:
            poll.register(self._command.report, select.POLLIN)
        poll.poll(math.ceil(1000 * max(0.0, self._patience())))
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass

    def _patience(self) -> float:
        """Until something is to be done even if nothing happens."""
        plan, lease = self._plan, self._lease
        patience = ANSWER_PATIENCE if self._mine else 60.0
        if lease is None:
            return patience if self._waiting_said else min(patience, WAITING_IS_SAID_AFTER)
        left = lease.remaining() - plan.margin
        # Looking often costs little, and is how a suspend of the host is noticed.
        patience = min(patience, 0.5, plan.ttl / 20, self._kill_at - kernel.now())
        return min(patience, left if left <= plan.notice else left - plan.notice)

    @staticmethod
    def _readable(command: Command) -> bool:
        return command.reporting and bool(select.select([command.report], [], [], 0)[0])

    # -- signals ----------------------------------------------------------------------------------

    def _arrived(self, number: int, by_process: bool, sender: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif not self._command.armed:
            self._give_up(number)
        elif by_process:
            # To us alone (its sender read our number in `holdfast show`), or to the whole group?
            self._mine.append(Mine(number, kernel.now()))
            self._link.send(Kind.ASK, number)
        # else: from the terminal, which has sent it to the command as well

    def _told(self, kind: Kind, number: int) -> None:
        mine = [one for one in self._mine if one.number == number]
        if kind is Kind.SIGNAL and not self._command.armed:
            self._give_up(number)
        elif kind is Kind.SIGNAL:
            # It has reached us too: so it was sent to the group, and the command has it.
            for one in mine:
                if not one.shared:
                    one.shared = True
                    return
            self._command.signal(number)
        elif kind is Kind.ANSWER and mine:
            self._settle(mine[0])

    def _answer_for_the_front(self) -> None:
        """It was stopped, and does not answer."""
        for one in list(self._mine):
            age = kernel.now() - one.since
            if age > BUSY_PATIENCE or (age > ANSWER_PATIENCE and kernel.stopped(os.getppid())):
                self._settle(one)

    def _settle(self, one: Mine) -> None:
        self._mine.remove(one)
        if not one.shared:
            self._command.signal(one.number)

    def _give_up(self, number: int) -> None:
        """A signal while the command does not run yet."""
        if number in FATAL:
            raise Ended(128 + number)

    def _reap(self) -> None:
        command = self._command
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != command.pid:
                continue
            if os.WIFSTOPPED(status):
                self._link.send(Kind.STOPPED, pid)
            elif os.WIFCONTINUED(status):
                if kernel.stopped(os.getppid()):  # somebody woke the command alone
                    os.kill(os.getppid(), signal.SIGCONT)
            else:
                command.ended(status)

    # -- the lock ---------------------------------------------------------------------------------

    def _granted(self) -> None:
        if isinstance(self._taken, BaseException):
            raise self._taken
        if self._taken is None:
            raise self._busy()
        self._lease = self._taken
        try:
            fence = self._lease.fence
        except holdfast.Unsupported:
            fence = None
        self._look()  # it may be over already: then nothing begins
        self._command.begin(fence)

    def _busy(self) -> Ended:
        if self._plan.quiet_busy:
            return Ended(BUSY)
        name = self._plan.name
        who = ""
        try:
            for info in self._locks.inspect(name):
                if info.name == name and info.holders:
                    about = info.holders[0].info
                    who = f" by {about.get('host', '?')}:{about.get('pid', '?')}"
        except holdfast.HoldfastError:  # it was only to be helpful
            pass
        waited = f" for {self._plan.timeout:g} s" if self._plan.timeout else ""
        hint = "Try again later, or wait longer with --timeout"
        return Ended(BUSY, f"the lock {name!r} was held{who}{waited}. {hint}")

    def _look(self) -> None:
        """Is the lock still ours, and for how long? (law 2)"""
        plan, lease = self._plan, self._lease
        if lease is None:
            if not self._waiting_said and kernel.now() - self._began >= WAITING_IS_SAID_AFTER:
                self._waiting_said = True
                say(f"waiting for the lock {plan.name!r}; Ctrl-C gives up")
            return
        lost, left, now = lease.lost.is_set(), lease.remaining(), kernel.now()
        if not plan.kill:
            if lost and not self._warned:
                self._warned = True
                say(f"{self._what_happened()}; the command goes on WITHOUT the lock")
            return
        if lost or left <= plan.margin or now >= self._kill_at:
            self._kill()
        self._deadline.moment = now + left - plan.margin / 2  # law 3: the front acts if we do not
        if left <= plan.margin + plan.notice and self._kill_at == math.inf:
            self._kill_at = now + plan.notice
            say(
                f"the lock {plan.name!r} could not be renewed and ends in {left:.1f} s: the "
                f"command is asked to stop (TERM), and killed in {plan.notice:.1f} s"
            )
            pids = kernel.descendants()
            kernel.signal_all(signal.SIGTERM, pids)
            kernel.signal_all(signal.SIGCONT, pids)  # a stopped process would not hear it

    def _kill(self) -> None:
        left = kernel.end_descendants(KILL_PATIENCE)
        stuck = f", except {', '.join(map(str, left))}, which cannot be" if left else ""
        raise Ended(LOST, f"{self._what_happened()}; the command was killed{stuck}")

    def _what_happened(self) -> str:
        if self._loss is not None:
            return f"the lock {self._plan.name!r} was lost: {self._loss.reason}"
        return f"the lock {self._plan.name!r} could not be renewed in time"

    def _finish(self, status: int) -> int:
        """The command has ended by itself, or because we asked it to."""
        name = self._plan.name
        self._deadline.moment = kernel.now() + FAREWELL
        self._link.send(Kind.ENDED, status)
        if self._lease is None:  # somebody killed the process that would have become it
            return status
        if self._kill_at < math.inf:
            kernel.end_descendants(KILL_PATIENCE)
            raise Ended(LOST, f"the lock {name!r} could not be renewed; the command has stopped")
        if not self._lease.release():
            line = f"the lock {name!r} had been lost before the command ended (status {status})"
            if self._plan.kill:
                raise Ended(LOST, f"{line}. Check what it did: somebody else may have held it")
            if not self._warned:
                say(line)
        return status
