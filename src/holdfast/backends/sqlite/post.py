"""Mail between processes: one named pipe each, by which a waiter is called and a death is seen.

Contract: a message is one line of JSON, [owner, expires, fence], or [owner] for "look again". It is
written after the transaction that it tells of; losing one costs a heartbeat, never correctness. It
is lost when the pipe is full: who finds its own so, or nearly, has all who wait look. A process's
end closes its pipe, which everybody who holds the other end sees at once: whoever depends on that
process is then called. What the pipe says is a hint; whether the process is dead is what
`lockfile.py` says.

One thread for each process and database reads the pipe and watches the others; it is started by the
first claim that waits, or the first watched cell.
Partner: `site.py`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import select
import threading
from collections.abc import Callable

from holdfast.backends.local import Call, Held
from holdfast.backends.sqlite import schema
from holdfast.core.port import why_not
from holdfast.ports import clock
from holdfast.ports.bare import Thread

__all__ = ["Post", "sweep"]

log = logging.getLogger("holdfast")

DYING, TICK = 1.0, 0.001
"""How long it may take at most, and how often we look, until a process without a pipe is dead."""

MOST_PEERS = 256
"""More open pipes than this are closed again, if nobody depends on the process behind them."""


class Post:
    def __init__(
        self, folder: str, number: int, alive: Callable[[int], bool], calls: dict[str, Call]
    ) -> None:
        self.number = number
        self._folder = folder
        self._alive = alive
        self._path = box(folder, number)
        os.mkfifo(self._path, 0o600)
        # Open for both, so that there is always a reader and nobody's writing end is the last.
        self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._room = fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ)  # small where a user has many
        try:
            self._epoll = select.epoll()
        except OSError:  # no descriptor is left
            os.close(self._fd)
            raise
        self._epoll.register(self._fd, select.EPOLLIN)
        self._rest = b""
        self._calls = calls  # owner -> how to tell it; outlives us when the files are replaced
        self._depends: dict[str, frozenset[int]] = {}  # owner -> processes whose end it awaits
        self._peers: dict[int, int] = {}  # process -> our end of its pipe, to see it break
        self._dying: dict[int, float] = {}  # process -> until when that may take
        self._mutex = threading.RLock()
        self._reader: threading.Thread | None = None
        self._closed = False

    def close(self) -> None:
        """The thread, if there is one, closes what it uses."""
        with self._mutex:
            self._closed = True
            for call in list(self._calls.values()):
                call(None)
            self._unlink()
            self._nudge()
            if self._reader is None:
                self.drop()

    def _unlink(self) -> None:
        try:
            os.unlink(self._path)
        except OSError:  # gone, or not ours to remove any more
            pass

    def _nudge(self) -> None:
        """Have the thread look around."""
        try:
            os.write(self._fd, b"\n")
        except OSError:  # it has enough to read
            pass

    def join(self, timeout: float) -> None:
        """Until the thread has closed everything, too."""
        if self._reader is not None:
            self._reader.join(timeout)

    @property
    def closed(self) -> bool:
        return self._closed

    def drop(self) -> None:
        """Close every descriptor, as a forked child does with what it inherited."""
        for fd in (self._fd, *self._peers.values()):
            os.close(fd)
        self._peers.clear()
        self._epoll.close()

    # -- waiting ----------------------------------------------------------------------------------

    def expect(self, owner: str, call: Call) -> None:
        """From now on messages for this owner are given to `call`."""
        self._calls[owner] = call
        self._read()

    def forget(self, owner: str) -> None:
        self._calls.pop(owner, None)
        self._depends.pop(owner, None)

    def depend(self, owner: str, processes: frozenset[int]) -> None:
        """Call this owner when one of these processes ends, and not for others any more."""
        self._depends[owner] = processes
        if owner not in self._calls:  # granted meanwhile
            self._depends.pop(owner, None)
        for process in processes:
            if process not in self._peers and process != self.number:
                with self._mutex:
                    if not self._watch(process):
                        self._ended(process)

    def _watch(self, process: int) -> bool:
        """Have our end of its pipe; False when it has ended."""
        if process in self._peers or self._closed:
            return True
        if len(self._peers) >= MOST_PEERS:
            needed = frozenset[int]().union(*self._depends.copy().values())
            for other in self._peers.keys() - needed:
                self._hang_up(other)
        fd = self._open(process, os.O_WRONLY)
        if fd is None:
            if not self._alive(process):
                return False
            self._dying[process] = clock.now() + DYING
            self._nudge()
            return True
        try:
            self._epoll.register(fd, 0)  # errors are told without being asked for
            self._peers[process] = fd
        except BaseException:
            os.close(fd)
            raise
        return True

    def _open(self, process: int, access: int) -> int | None:
        try:
            flags = access | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(box(self._folder, process), flags)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                log.warning("cannot write to the pipe of process %d: %s", process, error)
            return None

    def _hang_up(self, process: int) -> None:
        fd = self._peers.pop(process)
        self._epoll.unregister(fd)
        os.close(fd)

    def _ended(self, process: int) -> None:
        for owner, processes in self._depends.copy().items():
            call = self._calls.get(owner)
            if process in processes and call is not None:
                call(None)

    # -- telling ----------------------------------------------------------------------------------

    def tell(self, process: int, owner: str, held: Held | None) -> None:
        """Never waits. What cannot be told is found by the next look."""
        if process == self.number:
            self._hand_out(owner, held)
            return
        message = json.dumps([owner, *held] if held else [owner]).encode() + b"\n"
        # Opened for both, a pipe that nobody reads is no error, and no SIGPIPE comes (which ends
        # programs that want to be ended by it). But only for a moment: while it is open we are a
        # reader too, and nobody would see the pipe break.
        fd = self._open(process, os.O_RDWR)
        if fd is None:
            return
        try:
            os.write(fd, message)
        except BlockingIOError:
            log.warning("the pipe of process %d is full: it does not read", process)
        finally:
            os.close(fd)

    def _hand_out(self, owner: str, held: Held | None) -> None:
        call = self._calls.get(owner)
        if call is not None and held is None:
            call(None)
        elif call is not None and held is not None:
            call(Held(held.expires + schema.AHEAD, held.fence))  # mail has the host's time
            self.forget(owner)

    # -- the thread -------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._reader is None:
            with self._mutex:
                if self._reader is None and not self._closed:
                    reader = Thread(self._run, "holdfast-post")
                    why_not(
                        reader.start
                    )  # else who waits looks once a heartbeat, and asks for one again

    def _run(self) -> None:
        with self._mutex:
            if self._reader is not None or self._closed:
                return  # an interrupt came between the start of another one and its first line
            self._reader = threading.current_thread()
        while not self.closed:
            try:
                for fd, _ in self._epoll.poll(TICK if self._dying else None):
                    if fd == self._fd:
                        self._take_in()
                    else:
                        self._lost(fd)
                if self._dying:
                    self._bury()
            except Exception:
                log.exception("reading mail from other processes met an unexpected error")
        with self._mutex:
            self.drop()

    def _take_in(self) -> None:
        missed = False
        while data := self._mail():
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if line:
                    owner, *held = json.loads(line)
                    self._hand_out(owner, Held(*held) if held else None)
            missed = missed or len(data) > self._room // 2
        if missed:  # it may have been full
            for call in list(self._calls.values()):
                call(None)

    def _mail(self) -> bytes:
        try:
            return os.read(self._fd, self._room)
        except BlockingIOError:
            return b""

    def _lost(self, fd: int) -> None:
        """Somebody's pipe has no reader any more."""
        with self._mutex:
            for process in [p for p, its in self._peers.items() if its == fd]:
                self._dying[process] = clock.now() + DYING
                self._hang_up(process)

    def _bury(self) -> None:
        """A process that ends loses its files one by one, the pipe perhaps first: who depends on it
        is called when it is dead to everybody. (If it goes on without a pipe, heartbeats tell.)"""
        for process, until in list(self._dying.items()):
            if not self._alive(process) or clock.now() >= until:
                self._dying.pop(process, None)
                self._ended(process)


def box(folder: str, process: int) -> str:
    return os.path.join(folder, f"{process}.pipe")


def sweep(folder: str, alive: Callable[[int], bool]) -> None:
    """Remove the pipes of processes that ended without doing so."""
    for name in os.listdir(folder):
        number, dot, ending = name.partition(".")
        if dot and ending == "pipe" and number.isdecimal() and not alive(int(number)):
            try:
                os.unlink(box(folder, int(number)))
            except FileNotFoundError:  # it was just ending
                pass
