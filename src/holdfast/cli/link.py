"""The line between the two processes of `holdfast run`, and which signals travel on it.

Contract: messages are whole and in order; sending never waits (a front that was stopped by Ctrl-Z
must not hold up the warden), and the end of either process is seen by the other as the end of the
line. Partners: `front.py` and `warden.py`.
"""

from __future__ import annotations

import enum
import signal
import socket
import struct
from typing import NamedTuple

__all__ = ["FATAL", "FORWARDED", "Kind", "Link", "Message"]

FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends the wait for the lock. Signals are blocked while we have something to lose, so none of
them ends a process between two lines."""

FORWARDED = (
    *FATAL,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGTSTP,
)
"""What the command gets to see. Not those that say that the command itself did something wrong."""


class Kind(enum.IntEnum):
    SIGNAL = 1  # front: a process sent me this signal
    ASK = 2  # warden: a process sent *me* this signal; did you get it as well?
    ANSWER = 3  # front: if I did, I have told you before this
    STARTED = 4  # warden: the command runs, as this process
    STOPPED = 5  # warden: the command, this process, has stopped
    ENDED = 6  # warden: nothing runs any more; this will be my exit status


class Message(NamedTuple):
    kind: Kind
    number: int


LAYOUT = struct.Struct("=BI")


class Link:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, kind: Kind, number: int) -> None:
        try:
            self._end.send(LAYOUT.pack(kind, number))
        except OSError:  # full, because the other one was stopped; or it has ended, as we shall see
            pass

    def receive(self) -> tuple[list[Message], bool]:
        """What has come, and whether the other end is gone."""
        found: list[Message] = []
        while True:
            try:
                data = self._end.recv(LAYOUT.size)
            except BlockingIOError:
                return found, False
            except OSError:
                return found, True
            if not data:
                return found, True
            kind, number = LAYOUT.unpack(data)
            found.append(Message(Kind(kind), number))

    def close(self) -> None:
        self._end.close()
