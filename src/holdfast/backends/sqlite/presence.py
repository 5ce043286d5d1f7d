"""Who is alive, and whose turn it is: byte locks on one file, which the kernel drops at a death.

Contract: byte 0 is the gate, held for one transaction at a time; byte N belongs to the process with
the number N, for as long as it lives. Nothing is ever written into the file.

Hazards, each the reason for something below:
- These are POSIX record locks: a forked child does not inherit them (flock's it does), pids play no
  role (they are reused, and differ between containers), and a process that closes *any* descriptor
  of the file loses *all* its locks. So the file is opened once, and closed with the process's last
  client.
- They do not wait with a time limit. So who waits for the gate tries a few times, and then has a
  thread wait in the kernel and say when it is free. That thread asks with a lock of an open file
  description, which conflicts with its own process's record locks and takes no part in the
  kernel's deadlock detection. (It needs a descriptor of its own, open as long as the other.)
Partner: `site.py`.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading

__all__ = ["SPINS", "Presence"]

GATE = 0
SPINS = 60
"""A transaction takes some ten microseconds: so many tries, giving way in between, last longer."""

_FLOCK = struct.Struct("hhqqi4x")


class Presence:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.inode = os.fstat(self._fd).st_ino
        self._free: threading.Event | None = None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)
        os.close(self._waiting_fd)

    def enter(self, number: int) -> None:
        """This process lives, under that number."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)

    def alive(self, number: int) -> bool:
        """Whether another process lives under that number. (Ask nobody about yourself: one's own
        locks are never in one's way.)"""
        return self._holder(number)[0] != fcntl.F_UNLCK

    # -- the gate ---------------------------------------------------------------------------------

    def try_gate(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, GATE)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def leave_gate(self) -> None:
        if self._fd >= 0:  # closing it has left everything
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, GATE)

    def gate_free(self, timeout: float) -> bool:
        """Wait until nobody is in the gate; who came first may be somebody else."""
        for _ in range(SPINS):
            if self._holder(GATE)[0] == fcntl.F_UNLCK:
                return True
            os.sched_yield()
        free = self._free
        if free is None or free.is_set():  # one thread for all who wait; a second does no harm
            free = threading.Event()
            threading.Thread(
                target=self._wait_for_gate, args=(free,), name="holdfast-gate", daemon=True
            ).start()
            self._free = free
        return free.wait(max(0.0, timeout))

    def gate_holder(self) -> int:
        """The pid of who is in the gate, as this process sees it; 0 when that cannot be told."""
        kind, pid = self._holder(GATE)
        return pid if kind != fcntl.F_UNLCK else 0

    def _wait_for_gate(self, free: threading.Event) -> None:
        try:
            fcntl.fcntl(self._waiting_fd, fcntl.F_OFD_SETLKW, _flock(fcntl.F_WRLCK, GATE))
            fcntl.fcntl(self._waiting_fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, GATE))
        except OSError:  # closed meanwhile: whoever waited finds out
            pass
        free.set()

    def _holder(self, byte: int) -> tuple[int, int]:
        answer = fcntl.fcntl(self._fd, fcntl.F_GETLK, _flock(fcntl.F_WRLCK, byte))
        kind, _, _, _, pid = _FLOCK.unpack(answer)
        return kind, pid


def _flock(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
