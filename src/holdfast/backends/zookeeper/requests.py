"""ZooKeeper's requests and what is answered, as far as they are used here.

Contract: a `Request` is what kazoo's connection sends and reads: `type`, `serialize` and
`deserialize`, and `path` and `watcher` if it sets a watch. The bytes are those of ZooKeeper's jute
format: big-endian, strings and buffers after their length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Acl",
    "Request",
    "Stat",
    "check",
    "create",
    "create_container",
    "delete",
    "ephemerals",
    "exists",
    "get_children",
    "get_data",
    "multi",
    "set_data",
    "sync",
]

INT = struct.Struct("!i")
STAT = struct.Struct("!qqqqiiiqiiq")
OP = struct.Struct("!iBi")  # in a transaction: what follows, whether that was all, an error code
EPHEMERAL, EPHEMERAL_SEQUENTIAL, CONTAINER = 1, 3, 4

Watcher = Callable[[Any], None]


class Acl(NamedTuple):
    permissions: int
    scheme: str
    id: str


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    children: int
    pzxid: int


class Request:
    __slots__ = ("body", "deserialize", "path", "type", "watcher")

    def __init__(
        self,
        code: int,
        body: bytes,
        answer: Callable[[bytes, int], Any],
        path: str = "",
        watcher: Watcher | None = None,
    ) -> None:
        self.type = code
        self.body = body
        self.deserialize = answer
        self.path = path
        self.watcher = watcher

    def serialize(self) -> bytes:
        return self.body

    def __repr__(self) -> str:
        return f"<request {self.type} {self.path}>"


# -- what is sent ---------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    raw = text.encode()
    return INT.pack(len(raw)) + raw


def _bytes(data: bytes) -> bytes:
    return INT.pack(len(data)) + data


def _acl(acl: Sequence[Acl]) -> bytes:
    parts = [INT.pack(entry.permissions) + _text(entry.scheme) + _text(entry.id) for entry in acl]
    return INT.pack(len(acl)) + b"".join(parts)


def create(path: str, data: bytes, acl: Sequence[Acl], flags: int = 0) -> Request:
    """Answered with the path and the Stat of the new node."""
    body = _text(path) + _bytes(data) + _acl(acl) + INT.pack(flags)
    return Request(15, body, _path_and_stat, path)


def create_container(path: str, acl: Sequence[Acl]) -> Request:
    """A node that the server deletes some time after its last child has gone."""
    body = _text(path) + _bytes(b"") + _acl(acl) + INT.pack(CONTAINER)
    return Request(19, body, _path_and_stat, path)


def delete(path: str, version: int = -1) -> Request:
    return Request(2, _text(path) + INT.pack(version), _nothing, path)


def exists(path: str, watcher: Watcher | None = None) -> Request:
    """Answered with a Stat, or None; watches either way."""
    return Request(3, _text(path) + _flag(watcher), _stat, path, watcher)


def get_data(path: str, watcher: Watcher | None = None) -> Request:
    """Answered with the data and a Stat; watches a node that is there."""
    return Request(4, _text(path) + _flag(watcher), _data_and_stat, path, watcher)


def set_data(path: str, data: bytes, version: int) -> Request:
    return Request(5, _text(path) + _bytes(data) + INT.pack(version), _stat, path)


def get_children(path: str) -> Request:
    return Request(8, _text(path) + _flag(None), _texts, path)


def sync(path: str = "/") -> Request:
    return Request(9, _text(path), _nothing, path)


def check(path: str, version: int) -> Request:
    """Only in a transaction."""
    return Request(13, _text(path) + INT.pack(version), _nothing, path)


def multi(*requests: Request) -> Request:
    """All or none; answered with the Stat of each that gives one (else None), or with nothing but
    the code of the error that prevented all. (A list either way: kazoo looks through it.)"""
    parts = [OP.pack(request.type, 0, -1) + request.body for request in requests]
    return Request(14, b"".join(parts) + OP.pack(-1, 1, -1), _results)


def ephemerals(prefix: str) -> Request:
    """All nodes of this very session, by their paths; ZooKeeper 3.6 and later."""
    return Request(103, _text(prefix), _texts)


def _flag(watcher: Watcher | None) -> bytes:
    return b"\1" if watcher else b"\0"


# -- what is answered -----------------------------------------------------------------------------


def _nothing(_buffer: bytes, _offset: int) -> bool:
    return True


def _read_bytes(buffer: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = INT.unpack_from(buffer, offset)
    end = offset + 4 + max(length, 0)
    return bytes(buffer[offset + 4 : end]), end


def _stat(buffer: bytes, offset: int) -> Stat:
    return Stat._make(STAT.unpack_from(buffer, offset))


def _path_and_stat(buffer: bytes, offset: int) -> tuple[str, Stat]:
    path, offset = _read_bytes(buffer, offset)
    return path.decode(), _stat(buffer, offset)


def _data_and_stat(buffer: bytes, offset: int) -> tuple[bytes, Stat]:
    data, offset = _read_bytes(buffer, offset)
    return data, _stat(buffer, offset)


def _texts(buffer: bytes, offset: int) -> list[str]:
    size = INT.unpack_from
    (count,) = size(buffer, offset)
    offset += 4
    texts: list[str] = []
    for _ in range(count):
        (length,) = size(buffer, offset)
        offset += 4
        texts.append(buffer[offset : offset + length].decode())
        offset += length
    return texts


def _results(buffer: bytes, offset: int) -> list[Stat | int | None]:
    results: list[Stat | int | None] = []
    failure = 0
    while True:
        code, done, _ = OP.unpack_from(buffer, offset)
        offset += OP.size
        if done:
            return [failure] if failure else results
        stat: Stat | None = None
        if code == -1:  # an error; those before the one that failed say 0
            (error,) = INT.unpack_from(buffer, offset)
            failure = failure or error
            offset += 4
        elif code == 1:  # a create, which tells no more than its path here
            _, offset = _read_bytes(buffer, offset)
        elif code == 15:  # the same as some versions tell it
            _, offset = _read_bytes(buffer, offset)
            offset += STAT.size
        elif code == 5:
            stat = _stat(buffer, offset)
            offset += STAT.size
        results.append(stat)
