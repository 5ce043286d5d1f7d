"""Who is alive, and whose turn it is: byte locks on one file, which the kernel drops at a death.

Contract: byte 0 is the gate, held for one transaction at a time; byte 1 is held with it, for those
who wait; byte N belongs to the process with the number N, for as long as it lives. Nothing is ever
written into the file.

Hazards, each the reason for something below:
- A process's number is locked for the open file, not for the process (F_OFD_SETLK): record locks of
  a process are all lost when it closes *any* descriptor of the file, and two copies of this module
  in one process would not see one another's. A forked child shares the lock until it closes the
  file, which it does first of all (`sites.py`). Pids play no role: they are reused, and differ
  between containers.
- The gate is a record lock of the process, because those have a pid that can be named to whoever
  waits in vain; losing it is harmless, for SQLite has locks of its own.
- Neither waits with a time limit. So who waits for the gate tries a few times, and then has a
  thread wait in the kernel and say when it is free. It waits for byte 1, and shares it: a thread
  that cannot run when its turn comes (the interpreter is busy) must not be in anybody's way.
Partner: `site.py`.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
import threading
import time

from holdfast.core.port import why_not
from holdfast.ports import clock
from holdfast.ports.bare import Thread, ThreadEvent

__all__ = ["SPINS", "LockFile"]

GATE = 0
WAITING = 1
SPINS = 60
"""A transaction takes some ten microseconds: so many tries, giving way in between, last longer."""

_FLOCK = struct.Struct("hhqqi4x")


class LockFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._waiting_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no descriptor is left
            os.close(self._fd)
            raise
        self.inode = os.fstat(self._fd).st_ino
        self._free: ThreadEvent | None = None
        self._waiting = 0
        self._closed = False
        self._mutex = threading.RLock()
        # One call in C: an interrupt cannot come between it and the lock.
        self.leave_gate = functools.partial(fcntl.lockf, self._fd, fcntl.LOCK_UN, 2, GATE)

    def close(self) -> None:
        """At once, or when nobody waits at the gate any more: the descriptors must not become
        those of other files meanwhile. Alive we are no more."""
        with self._mutex:
            self._closed = True
            if self._waiting:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, GATE, 0))
            else:
                self.drop()

    def drop(self) -> None:
        os.close(self._fd)
        os.close(self._waiting_fd)

    def enter(self, number: int) -> None:
        """This process lives, under that number."""
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, number))

    def alive(self, number: int) -> bool:
        """Whether somebody else lives under that number. (Ask nobody about yourself: one's own
        locks are never in one's way.)"""
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, number))
        kind: int = _FLOCK.unpack(answer)[0]
        return kind != fcntl.F_UNLCK

    # -- the gate ---------------------------------------------------------------------------------

    def try_gate(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, GATE)
        except (BlockingIOError, PermissionError):
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, WAITING)
        except (BlockingIOError, PermissionError):  # who waited before has not looked yet
            pass
        return True

    def gate_free(self, timeout: float) -> bool:
        """Wait until nobody is in the gate; who comes first may be somebody else."""
        if not self._stay():
            return True
        try:
            return self._gate_free(timeout)
        finally:
            self._go()

    def _stay(self) -> bool:
        with self._mutex:
            self._waiting += not self._closed
            return not self._closed

    def _go(self) -> None:
        with self._mutex:
            self._waiting -= 1
            if self._closed and not self._waiting:
                self.drop()

    def _gate_free(self, timeout: float) -> bool:
        for _ in range(SPINS):
            if not self._inside():
                return True
            os.sched_yield()
        free = self._free
        if free is None or free.is_set():  # one thread for all who wait; a second does no harm
            if free is not None:
                # The last one was told, and still somebody is inside. If that one could not take
                # byte 1, because a thread that was told has not run yet, waiting for it is no wait.
                time.sleep(0.001)
            free = ThreadEvent()
            waiter = Thread(functools.partial(self._wait_for_gate, free), "holdfast-gate")
            if why_not(waiter.start):  # look again soon
                time.sleep(min(max(0.0, timeout), 0.001))
                return not self._inside()
            self._free = free
        return free.block(clock.now() + max(0.0, timeout))

    def gate_holder(self) -> int:
        """The pid of who is in the gate, as seen from here; 0 or -1 if that cannot be told."""
        if not self._stay():
            return 0
        try:
            return self._inside()
        finally:
            self._go()

    def _inside(self) -> int:
        """0 if nobody is in the gate; else their pid, -1 if it cannot be seen from here."""
        answer = fcntl.fcntl(self._fd, fcntl.F_GETLK, _flock(fcntl.F_WRLCK, GATE))
        kind, _, _, _, pid = _FLOCK.unpack(answer)
        return 0 if kind == fcntl.F_UNLCK else int(pid) or -1

    def _wait_for_gate(self, free: ThreadEvent) -> None:
        if self._stay():
            try:
                self._share_waiting_byte()
            finally:
                self._go()
        free.set()

    def _share_waiting_byte(self) -> None:
        try:
            fcntl.fcntl(self._waiting_fd, fcntl.F_OFD_SETLKW, _flock(fcntl.F_RDLCK, WAITING))
            fcntl.fcntl(self._waiting_fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, WAITING))
        except OSError:  # interrupted: whoever waited finds out
            pass


def _flock(kind: int, byte: int, length: int = 1) -> bytes:
    """A length of 0 means: to the end."""
    return _FLOCK.pack(kind, os.SEEK_SET, byte, length, 0)
