"""The smallest possible client of Redis, for the naive forms: a command goes out, a reply comes in.

Contract: one connection, made when first needed. A reply that does not come in time is an
`OSError` (`TimeoutError`; `NoRedis`, if what comes is no reply of a Redis), a refusal by the server
a `RedisError`; either way the connection of an exchange that did not end is closed, never used
again. Only redis:// and TCP. It is here, and not a package, so that a level shows exactly what
travels.
"""

from __future__ import annotations

import re
import socket
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

import holdfast

__all__ = ["NoRedis", "Redis", "RedisError", "Reply", "through"]

Reply: TypeAlias = "str | int | list[Reply] | None"
PATIENCE = 1.0
"""Seconds for a reply; long on a loopback, short for somebody who looks on."""
FIRST_LINE = re.compile(rb"([+-][^\r\n]*|[:$*]-?\d{1,19})\r\n")
LONGEST = 65536
"""Of a line; Redis's own are far shorter."""


class RedisError(Exception):
    """The server answered with an error."""


class NoRedis(OSError):
    """Something answers that does not speak as Redis does."""


class Redis:
    def __init__(self, url: str, timeout: float = PATIENCE) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port or 6379
        except ValueError:
            port = 0
        if parts.scheme != "redis" or not 0 < port < 65536:
            raise holdfast.Misconfigured(
                "the lab speaks to one Redis by TCP: redis://[user:password@]host:port/db"
            )
        self.address = parts.hostname or "127.0.0.1", port
        self._login = [unquote(word) for word in (parts.username, parts.password) if word]
        self._database = parts.path.strip("/")
        self._timeout = timeout
        self._link: socket.socket | None = None
        self._replies: BinaryIO

    def call(self, *words: str | int) -> Reply:
        try:
            link = self._link or self._connect()
            link.sendall(_encode(words))
            return _read(self._replies)
        except OSError:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        self._link = socket.create_connection(self.address, self._timeout)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._link.makefile("rb")
        if self._login:
            self.call("AUTH", *self._login)
        if self._database:
            self.call("SELECT", self._database)
        return self._link

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._replies.close()
            link.close()

    def __enter__(self) -> Redis:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def through(url: str, address: tuple[str, int]) -> str:
    """The same URL by way of another address."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}{address[0]}:{address[1]}"))


def _encode(words: tuple[str | int, ...]) -> bytes:
    parts = [str(word).encode() for word in words]
    lines = [b"*%d\r\n" % len(parts), *(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)]
    return b"".join(lines)


def _read(replies: BinaryIO) -> Reply:
    line = replies.readline(LONGEST)
    if not line.endswith(b"\n") and len(line) < LONGEST:
        raise ConnectionResetError("the server closed the connection")
    if not FIRST_LINE.fullmatch(line):
        raise NoRedis("what answers there does not speak as Redis does")
    mark, text = line[:1], line[1:-2].decode(errors="replace")
    match mark:
        case b"-":
            raise RedisError(text)
        case b"+":
            return text
        case b":":
            return int(text)
        case b"*":
            return None if text == "-1" else [_read(replies) for _ in range(int(text))]
        case _:
            return None if text == "-1" else replies.read(int(text) + 2)[:-2].decode()
