"""What no lock over a network, and no fair lock in one process, can be faster than.

Contract: each floor does the least that the scenario needs, and nothing for safety: no lease, no
token, no clean-up. Being close to it is the aim; what lies between is the price of those.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator

from bench.measure import pin

__all__ = ["FifoLock", "loopback"]


@contextlib.contextmanager
def loopback(core: int) -> Iterator[socket.socket]:
    """A TCP connection to an echo server in a process of its own, pinned to `core`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            try:
                pin(core)
                _echo(server)
            finally:
                os._exit(0)
        client = socket.create_connection(server.getsockname())
    try:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client
    finally:
        client.close()
        os.waitpid(child, 0)


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(4096):
            connection.sendall(data)


class FifoLock:
    """A fair lock of one process: whoever releases it opens the next one's gate."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._gates: deque[threading.Lock] = deque()
        self._held = False

    def acquire(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
        gate.acquire()

    def release(self) -> None:
        with self._mutex:
            if self._gates:
                self._gates.popleft().release()
            else:
                self._held = False
