"""The floor of Redlock: SET NX PX at every master at once, and go on when a majority has answered;
EVALSHA compare-and-delete to give it back, the same way.

Encoded once, over bare sockets, polled: no client, token or retry. What comes late is
read with the next answers. A master that is gone is left out for good, and one that is silent is
not waited for.
"""

from __future__ import annotations

import select
import socket
from typing import Any

from bench.peers.base import Adapter
from bench.peers.raw_redis import RELEASE, encoded

__all__ = ["connect"]

TTL_MS = 30_000
ANSWER = b"\r\n"


class Majority:
    def __init__(self, links: list[socket.socket], script: str, name: str) -> None:
        key, owner = f"raw:{name}", "0123456789abcdef0123456789abcdef"
        self._take = encoded("SET", key, owner, "NX", "PX", str(TTL_MS))
        self._give = encoded("EVALSHA", script, "1", key, owner)
        self._links = {link.fileno(): link for link in links}
        self._owed = dict.fromkeys(self._links, 0)
        self._quorum = len(links) // 2 + 1
        self._poll = select.poll()
        for fd in self._links:
            self._poll.register(fd, select.POLLIN)

    def acquire(self, timeout: float | None) -> bool:
        self._ask(self._take)
        return True

    def release(self) -> None:
        self._ask(self._give)

    def _ask(self, data: bytes) -> None:
        for fd, link in list(self._links.items()):
            try:
                link.send(data)
                self._owed[fd] += 1
            except BlockingIOError:
                pass  # a black hole that is full
            except OSError:
                self._lose(fd)
        answered = 0
        while answered < self._quorum:
            for fd, _ in self._poll.poll():
                try:
                    chunk = self._links[fd].recv(65536)
                except OSError:
                    chunk = b""
                if not chunk:
                    self._lose(fd)
                    continue
                self._owed[fd] -= chunk.count(ANSWER)
                answered += self._owed[fd] <= 0

    def _lose(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._links.pop(fd).close()


class Raw(Adapter):
    version = "sockets"

    def __init__(self, target: str) -> None:
        self._links: list[socket.socket] = []
        for address in target.split(","):
            host, _, port = address.rpartition(":")
            link = socket.create_connection((host, int(port)))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(encoded("SCRIPT", "LOAD", RELEASE))
            self._script = link.recv(4096).split(b"\r\n")[1].decode()
            link.setblocking(False)
            self._links.append(link)

    def make(self, name: str) -> Majority:
        return Majority(self._links, self._script, name)

    def close(self) -> None:
        for link in self._links:
            link.close()


def connect(target: str, **options: Any) -> Adapter:
    return Raw(target)
