"""A password that must never be seen again, in URLs of all schemes, and servers that provoke it.

Contract: `urls` knows every scheme of ours that has hosts, so a new one is tested or fails here.
The servers are on loopback and of no use: one refuses, one says back what it was told, and one
speaks as old Redis servers do, which repeat the arguments of a command that they do not know. Of
several hosts the first is theirs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.backends import _registry

__all__ = ["CANARY", "LOGIN", "SERVERS", "echo", "ours", "reprs", "server", "turncoat", "urls"]

CANARY = "c4naryW0rd"
LOGIN = f"me:p%40%2F{CANARY}@"
WITHOUT = ("memory", "sqlite")
"""Schemes whose URLs have neither host nor login."""

PATHS = {
    "redis+sentinel": f"/main/0?sentinel_user=me&sentinel_password={CANARY}&",
    "rediss+sentinel": f"/main/0?sentinel_user=me&sentinel_password={CANARY}&",
    "redis": "/0?", "rediss": "/0?", "redis+cluster": "/?", "rediss+cluster": "/?",
    "redlock": "/?", "redlocks": "/?", "etcd": "/app?", "etcds": "/app?", "zk": "/app?",
    "mysql": "/app?", "mariadb": "/app?", "postgresql": "/app?", "postgres": "/app?",
}  # fmt: skip


def ours() -> list[str]:
    """The schemes of this package that take a login; not those that other tests have registered."""
    return sorted(
        scheme
        for scheme, entry in _registry.items()
        if entry.target.startswith("holdfast.") and scheme not in WITHOUT
    )


def urls(scheme: str, port: int, patience: float = 0.15) -> Iterator[str]:
    """With one login for all and, where that can be, one for each host."""
    if scheme == "redis+unix":
        yield f"{scheme}://{LOGIN}{socket_of(port)}?db=0&request_timeout={patience:g}"
        return
    host, end = f"127.0.0.1:{port}", f"{PATHS[scheme]}request_timeout={patience:g}"
    if not scheme.startswith("redlock"):
        yield f"{scheme}://{LOGIN}{host}{end}"
        return
    hosts = [f"127.0.0.{number}:{port}" for number in (1, 2, 3)]
    yield f"{scheme}://{LOGIN}{','.join(hosts)}{end}"
    yield f"{scheme}://{','.join(LOGIN + host for host in hosts)}{end}"


# -- servers ---------------------------------------------------------------------------------------


def echo(heard: bytes) -> bytes:
    return heard


def old_redis(heard: bytes) -> bytes:
    """To each command: that it is unknown, and what its arguments were."""
    said = b""
    for command in re.split(rb"(?:^|(?<=\r\n))\*\d+\r\n", heard)[1:]:
        name, *words = re.findall(rb"\$\d+\r\n(.*)\r\n", command)
        shown = b" ".join(b"`%s`," % word for word in words)
        said += b"-ERR unknown command `%s`, with args beginning with: %s\r\n" % (name, shown)
    return said


Answer = Callable[[bytes], bytes] | None
SERVERS: dict[str, Answer] = {"refuses": None, "echoes": echo, "repeats": old_redis}


def turncoat() -> Callable[[bytes], bytes]:
    """A good Redis until it has said its version, then an old one."""
    asked: list[bytes] = []

    def answer(heard: bytes) -> bytes:
        if asked:
            return old_redis(heard)
        if b"INFO" in heard:
            asked.append(heard)
            return b"$21\r\nredis_version:7.0.15\r\n\r\n"
        return b"+OK\r\n"

    return answer


def socket_of(port: int) -> str:
    """Where the same server is to be found without a port."""
    return f"{tempfile.gettempdir()}/holdfast-canary-{port}.sock"


@contextlib.contextmanager
def server(answer: Answer) -> Iterator[int]:
    """The port at which it is (not) to be found."""
    with socket.socket() as listening, socket.socket(socket.AF_UNIX) as local:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        if answer is None:
            yield port
            return
        local.bind(socket_of(port))
        for one in (listening, local):
            one.listen(64)
            threading.Thread(target=_serve, args=(one, answer), daemon=True).start()
        try:
            yield port
        finally:
            os.unlink(socket_of(port))
            for one in (listening, local):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def _serve(listening: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_talk, args=(connection, answer), daemon=True).start()


def _talk(connection: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(30)
        for _ in range(20):
            heard = connection.recv(65536)
            if not heard:
                return
            connection.sendall(answer(heard))


# -- what objects say of themselves ----------------------------------------------------------------


def reprs(root: Any, limit: int = 3000) -> Iterator[str]:
    """Of everything of ours that can be reached from an object."""
    seen: set[int] = {id(root)}
    todo = [root]
    while todo and len(seen) < limit:
        here = todo.pop()
        if type(here).__module__.startswith("holdfast"):
            yield repr(here)
        for there in gc.get_referents(here):
            inner = type(there).__module__.startswith("holdfast")
            plain = isinstance(there, dict | list | tuple | set)
            if (inner or plain) and id(there) not in seen:
                seen.add(id(there))
                todo.append(there)
