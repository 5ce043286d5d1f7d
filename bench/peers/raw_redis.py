"""The floor of locks in Redis: SET NX PX to take it, EVALSHA compare-and-delete to give it back.

Encoded once, over a bare socket: the two round trips that every such lock needs, and what Redis
does for them, without client, line, token or retry. It cannot wait, so nobody contends for it.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

from bench.peers.base import Adapter

__all__ = ["connect"]

RELEASE = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
)
TTL_MS = 30_000


def encoded(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"".join(
        [b"*%d\r\n" % len(parts), *(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)]
    )


class Exchange:
    def __init__(self, link: socket.socket, script: str, name: str) -> None:
        key, owner = f"raw:{name}", "0123456789abcdef0123456789abcdef"
        self._send, self._receive = link.sendall, link.recv
        self._take = encoded("SET", key, owner, "NX", "PX", str(TTL_MS))
        self._give = encoded("EVALSHA", script, "1", key, owner)

    def acquire(self, timeout: float | None) -> bool:
        self._send(self._take)
        answer = self._receive(4096)
        if answer != b"+OK\r\n":
            raise RuntimeError(f"SET was answered with {answer!r}")
        return True

    def release(self) -> None:
        self._send(self._give)
        answer = self._receive(4096)
        if answer != b":1\r\n":
            raise RuntimeError(f"EVALSHA was answered with {answer!r}")


class Raw(Adapter):
    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._link = socket.create_connection((where.hostname, where.port or 6379))
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._script = self._ask("SCRIPT", "LOAD", RELEASE).decode()
        info = self._ask("INFO", "server").decode()
        self.version = f"Redis {info.partition('redis_version:')[2].split()[0]}"

    def _ask(self, *words: str) -> bytes:
        """For the beginning: the text of one answer."""
        self._link.sendall(encoded(*words))
        with self._link.makefile("rb") as answers:
            size = answers.readline()
            if not size.startswith(b"$"):
                raise RuntimeError(f"{words[0]} was answered with {size!r}")
            return answers.read(int(size[1:]) + 2)[:-2]

    def make(self, name: str) -> Exchange:
        return Exchange(self._link, self._script, name)

    def close(self) -> None:
        self._link.close()


def connect(target: str, **options: Any) -> Adapter:
    return Raw(target)
