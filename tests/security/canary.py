"""A password that must never be seen again, in URLs of all schemes, and servers that provoke it.

Contract: `urls` knows every scheme of ours that has hosts, so a new one is tested or fails here.
The servers are on loopback and of no use: one refuses, one says back what it was told, and one
speaks as old Redis servers do, which repeat the arguments of a command that they do not know. Of
several hosts the first is theirs.
"""

from __future__ import annotations

import contextlib
import gc
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.backends import _registry

__all__ = ["CANARY", "SERVERS", "ours", "reprs", "server", "urls"]

CANARY = "c4naryW0rd"
LOGIN = f"me:p%40%2F{CANARY}@"
WITHOUT = ("memory", "sqlite", "redis+unix")
"""Schemes whose URLs have no host."""

PATHS = {
    "redis+sentinel": f"/main/0?sentinel_user=me&sentinel_password={CANARY}&",
    "rediss+sentinel": f"/main/0?sentinel_user=me&sentinel_password={CANARY}&",
    "redis": "/0?", "rediss": "/0?", "redis+cluster": "/?", "rediss+cluster": "/?",
    "redlock": "/?", "redlocks": "/?", "etcd": "/app?", "etcds": "/app?", "zk": "/app?",
    "mysql": "/app?", "mariadb": "/app?", "postgresql": "/app?", "postgres": "/app?",
}  # fmt: skip


def ours() -> list[str]:
    """The schemes of this package that have hosts; not those that other tests have registered."""
    return sorted(
        scheme
        for scheme, entry in _registry.items()
        if entry.target.startswith("holdfast.") and scheme not in WITHOUT
    )


def urls(scheme: str, port: int, patience: float = 0.15) -> Iterator[str]:
    """With one login for all and, where that can be, one for each host."""
    end = f"{PATHS[scheme]}request_timeout={patience:g}"
    host = f"127.0.0.1:{port}"
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


@contextlib.contextmanager
def server(answer: Answer) -> Iterator[int]:
    """The port at which it is (not) to be found."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        if answer is None:
            yield port
            return
        listening.listen(64)
        threading.Thread(target=_serve, args=(listening, answer), daemon=True).start()
        try:
            yield port
        finally:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


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
