"""The floor of every lock over a network: one raw round trip to take it, one to give it back.

The server is a process of its own and does nothing but echo. It ends when the connection does.
"""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

MESSAGE = b"x" * 64


class RoundTrip:
    def __init__(self, client: socket.socket) -> None:
        self._send, self._receive = client.sendall, client.recv

    def acquire(self, timeout: float | None) -> bytes:
        self._send(MESSAGE)
        return self._receive(4096)

    def release(self) -> None:
        self._send(MESSAGE)
        self._receive(4096)


class Loopback(Adapter):
    version = f"Linux {platform.release().partition('-')[0]}"

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._server = os.fork()
            if self._server == 0:
                try:
                    _echo(server)
                finally:
                    os._exit(0)
            self._client = socket.create_connection(server.getsockname())
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def make(self, name: str) -> RoundTrip:
        return RoundTrip(self._client)

    def place(self, core: int) -> None:
        os.sched_setaffinity(self._server, {core})

    def close(self) -> None:
        self._client.close()
        os.waitpid(self._server, 0)


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    server.close()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(4096):
            connection.sendall(data)


def connect(target: str, **options: Any) -> Adapter:
    return Loopback()
