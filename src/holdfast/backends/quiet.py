"""Sockets that close themselves without a word and those that a forked child shall not have; the
bell that wakes who waits for sockets, and how long to wait.

Contract: who has one closes it. What an interrupt, or somebody who forgot a client, has left to the
garbage collector is closed all the same, and nobody is warned: it comes to a socket before it comes
to the `__del__` of who has it.

Law 8: sockets of which the parent's death must be seen, and by which a child could speak in its
parent's name, become /dev/null in the child before anything else runs there.
"""

from __future__ import annotations

import codecs
import functools
import os
import socket
from typing import TypeAlias

from holdfast.ports.clock import now

__all__ = ["Bell", "Socket", "milliseconds", "not_for_children", "socket_pair", "which"]

DAY = 86400_000.0  # milliseconds

# Looking up a host imports this codec when it is first used. A child that was forked while another
# thread is inside an import waits for it for ever: so it is imported now, before there are sockets.
codecs.lookup("idna")


class Socket(socket.socket):
    def __del__(self) -> None:
        if hasattr(self, "_io_refs"):  # else an interrupt came before it was anything
            self.close()


_of_descriptor = functools.partial(Socket, -1, -1, -1)


def socket_pair() -> tuple[Socket, Socket]:
    """By which a thread that waits is woken; neither blocks."""
    # In one step: what an interrupt finds in between would be nobody's.
    one, other = map(_of_descriptor, map(socket.socket.detach, socket.socketpair()))
    one.setblocking(False)
    other.setblocking(False)
    return one, other


class Bell:
    """Wakes a thread that waits in `poll`, where it is registered. Whoever waits calls `hush`.

    `ring` may come from any thread, also inside of a finaliser that struck in another `ring`, so it
    takes no mutex. And it may come during `close` and after it; so nothing is closed by its number,
    which may be another file's a moment later: the sockets are let go, and close themselves when
    the last `ring` that was on its way has come out of `send`."""

    __slots__ = ("_button", "_ear")

    def __init__(self) -> None:
        self._ear: Socket | None
        self._button: Socket | None
        self._ear, self._button = socket_pair()

    def fileno(self) -> int:
        ear = self._ear
        return -1 if ear is None else ear.fileno()

    def ring(self) -> None:
        button = self._button
        if button is not None:
            try:
                button.send(b"!")
            except OSError:  # it has rung often enough, or nobody is there to hear it
                pass

    def hush(self) -> None:
        ear = self._ear
        if ear is not None:
            try:
                ear.recv(4096)
            except BlockingIOError:  # somebody else has
                pass

    def close(self) -> None:
        self._ear = self._button = None


def milliseconds(deadline: float) -> float:
    """For `poll`, which rounds up. A day at most, so who was not woken looks whether it is time."""
    left = (deadline - now()) * 1000
    return 0 if left < 0 else left if left < DAY else DAY


# -- what children do not inherit ------------------------------------------------------------------

Which: TypeAlias = tuple[int, int]

_not_for_children: dict[int, Which] = {}
"""Descriptor -> which socket it was: it may be closed without our hearing of it, and the number be
another file's by now."""


def which(number: int) -> Which:
    """What tells this file from another one that has its number later."""
    found = os.fstat(number)
    return found.st_dev, found.st_ino


def not_for_children(number: int) -> Which:
    """A forked child shall not keep this socket open when its parent dies, nor use it."""
    if number < 0:  # it was closed just now
        return 0, 0
    found = _not_for_children[number] = which(number)
    return found


def _forked() -> None:
    # Not closed: the objects that know these numbers will close them, when they may be another's.
    if _not_for_children:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number, its in _not_for_children.items():
            try:
                if which(number) == its:
                    os.dup2(nothing, number, inheritable=False)
            except OSError:  # it is closed
                pass
        os.close(nothing)
        _not_for_children.clear()


os.register_at_fork(after_in_child=_forked)
