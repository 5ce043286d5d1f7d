"""Small servers and clients, in threads, on both sides of a proxy."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.testing.framing import Way
from holdfast.testing.proxy import FaultProxy
from holdfast.testing.relay import Link

WAYS: tuple[Way, Way] = ("to_server", "to_client")
RST = struct.pack("ii", 1, 0)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(bulk(word) for word in words)


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


class Server:
    """A thread per connection. Remembers what was applied, and how each connection ended."""

    def __init__(self, path: str | None = None) -> None:
        self.listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.listener.bind(path or ("127.0.0.1", 0))
        self.listener.listen(64)
        self.address: Any = path or self.listener.getsockname()
        self.changed = threading.Condition()
        self.applied: list[bytes] = []
        self.ends: list[str] = []
        self.socks: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.serve, args=(sock,))
            with self.changed:
                self.socks.append(sock)
                self.threads.append(thread)
                self.changed.notify_all()
            thread.start()

    def serve(self, sock: socket.socket) -> None:
        end = "eof"
        try:
            self.handle(sock)
        except ConnectionError:
            end = "reset"
        except OSError:
            end = "closed"
        sock.close()
        with self.changed:
            self.ends.append(end)
            self.changed.notify_all()

    def handle(self, sock: socket.socket) -> None:
        """RESP: answer with the last word; PUSH sends a push first."""
        with sock.makefile("rb") as file:
            while head := file.readline():
                words = [file.read(int(file.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
                self.apply(words[-1])
                push = b">2\r\n+news\r\n+1\r\n" if words[0] == b"PUSH" else b""
                sock.sendall(push + bulk(words[-1]))

    def apply(self, what: bytes) -> None:
        with self.changed:
            self.applied.append(what)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 25), (self.applied, self.ends)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.threads[0].join(25)
        for sock in self.socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join(25)
            assert not thread.is_alive()


class Collector(Server):
    """Reads to the end, then answers with everything it got."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        super().__init__()

    def handle(self, sock: socket.socket) -> None:
        got = bytearray()
        self.gate.wait(25)
        try:
            while data := sock.recv(65536):
                got += data
        finally:
            self.apply(bytes(got))
        sock.sendall(got)


def expect(sock: socket.socket, data: bytes) -> None:
    got = bytearray()
    while len(got) < len(data) and (more := sock.recv(len(data) - len(got))):
        got += more
    assert got == data


class Client:
    def __init__(self, proxy: FaultProxy) -> None:
        self.sock = socket.create_connection(proxy.address, timeout=5)
        self.proxy = proxy

    def send(self, *words: bytes) -> None:
        self.sock.sendall(command(*words))

    def expect(self, data: bytes) -> None:
        expect(self.sock, data)

    def call(self, word: bytes) -> None:
        self.send(b"ECHO", word)
        self.expect(bulk(word))

    def expect_end(self) -> None:
        assert self.sock.recv(1) == b""

    def expect_reset(self) -> None:
        with pytest.raises(ConnectionResetError):
            self.sock.recv(1)

    def link(self) -> Link:
        mine = self.sock.getsockname()
        return self.proxy.wait_until(
            lambda: next((link for link in self.proxy.connections if link.address == mine), None)
        )
