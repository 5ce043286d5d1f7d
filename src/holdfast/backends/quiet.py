"""Sockets that close themselves without a word.

Contract: who has one closes it. What an interrupt, or somebody who forgot a client, has left to the
garbage collector is closed all the same, and nobody is warned: it comes to a socket before it comes
to the `__del__` of who has it.
"""

from __future__ import annotations

import functools
import socket

__all__ = ["Socket", "socket_pair"]


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
