"""What `holdfast run` needs of Linux and Python does not offer: the only module with ctypes.

Contract: no decisions. A process may ask to die with its parent, may become the one to whom
orphaned descendants fall ("subreaper"), may read signals together with who sent them, and may end
all its descendants. Hazard: a descendant that changed its user (sudo) cannot be signalled by us.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = [
    "Arrival",
    "Deadline",
    "SignalFile",
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "end_below",
    "end_descendants",
    "now",
    "process_state",
    "signal_all",
    "stopped",
]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
RECORD = struct.Struct("=IiiI112x")
"""The beginning of `struct signalfd_siginfo`: signal, errno, code, pid; 128 bytes in all."""

_libc = ctypes.CDLL(None, use_errno=True)


def now() -> float:
    """The clock on which leases end: it runs while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when the *thread* that forked it ends; survives exec,
    except of a set-user-id program. False: the parent was gone before we could ask."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes our child, not init's: so we have no
    child left exactly when we have no descendant left, and `waitpid` can say so."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


# -- signals with their sender ---------------------------------------------------------------------


class Arrival(NamedTuple):
    """A signal that came. One from the terminal went to its whole foreground process group; one
    from a process may have been meant for us alone."""

    number: int
    by_process: bool
    sender: int  # a process's number, or 0


class SignalFile:
    """A file from which blocked signals are read. The caller blocks them first, in all threads."""

    def __init__(self, numbers: Iterable[int]) -> None:
        wanted = ctypes.create_string_buffer(128)  # sigset_t, the largest there is
        _libc.sigemptyset(wanted)
        for number in numbers:
            _libc.sigaddset(wanted, int(number))
        self._file = _libc.signalfd(-1, wanted, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "signalfd failed")

    def fileno(self) -> int:
        return int(self._file)

    def read(self) -> Iterator[Arrival]:
        """Everything that has come until now; does not wait."""
        while True:
            try:
                record = os.read(self._file, RECORD.size)
            except BlockingIOError:
                return
            number, _, code, sender = RECORD.unpack(record)
            yield Arrival(number, code <= 0, sender)


# -- other processes -------------------------------------------------------------------------------


def process_state(pid: int) -> str:
    """One letter as in ps: R, S, D, T (stopped), Z; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def stopped(pid: int) -> bool:
    return process_state(pid) == "T"


def _children(pid: int) -> list[int]:
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _children_by_search(pid)
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:  # it has just ended
        pass
    return found


def _children_by_search(parent: int) -> list[int]:
    """For kernels built without those files: looks at every process there is."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(entry)}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry))
        except (OSError, ValueError):  # not a process, or it has just ended
            pass
    return found


def descendants(spare: frozenset[int] = frozenset()) -> list[int]:
    """Those of this process, parents before children, without `spare` and what is below it.

    Hazard: a listing made while processes start and end may miss some; whoever must have all of
    them looks again until `waitpid` has nobody to wait for.
    """
    found = [pid for pid in _children(os.getpid()) if pid not in spare]
    for pid in found:
        found += _children(pid)  # appended behind those of its own generation
    return found


def signal_all(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def end_descendants(patience: float, spare: frozenset[int] = frozenset()) -> list[int]:
    """KILL all of them, and wait until none is left; returns those that could not be ended."""
    deadline = now() + patience
    while True:
        left = descendants(spare)
        signal_all(signal.SIGKILL, left)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        if spare and not left:  # `waitpid` cannot say it: the spared ones are children, too
            return []
        if now() > deadline:
            return descendants(spare)
        time.sleep(0.002)


def end_below(pid: int, patience: float) -> None:
    """KILL everything below a child of ours that does not reap, being stopped; not the child."""
    deadline = now() + patience
    while now() < deadline:
        found = _children(pid)
        for child in found:
            found += _children(child)
        if not (left := [child for child in found if process_state(child) not in ("", "Z")]):
            return
        signal_all(signal.SIGKILL, left)
        time.sleep(0.002)


# -- one number that two processes share -----------------------------------------------------------


class Deadline:
    """A moment that one process sets and another sees, also one that was stopped meanwhile. Made
    before the fork. One aligned machine word: never seen half written."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._cell = ctypes.c_double.from_buffer(self._memory)
        self._cell.value = float("inf")

    @property
    def moment(self) -> float:
        return self._cell.value

    @moment.setter
    def moment(self, value: float) -> None:
        self._cell.value = value
