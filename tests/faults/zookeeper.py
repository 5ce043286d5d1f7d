"""What the tests of `zk://` share: clients of servers that are broken on purpose."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Connect  # type: ignore[import-untyped]

import holdfast
from holdfast.backends.url import parse
from holdfast.backends.zookeeper import ZooKeeperBackend
from holdfast.backends.zookeeper.session import Session
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Cell, Claim, Grant
from tests.servers.home import HOST

LONG = 15.0


@contextmanager
def kazoo(port: int, **options: Any) -> Iterator[Any]:
    """Somebody who uses kazoo itself."""
    client = KazooClient(f"{HOST}:{port}", **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def wires() -> set[threading.Thread]:
    """Connection threads that are alive."""
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-zookeeper"}


def sessions(locks: holdfast.Locks) -> list[Session]:
    backend = locks._current.backend
    assert isinstance(backend, ZooKeeperBackend)
    return list(backend._pool._current.values())


def end_session(port: int, session: Session) -> None:
    """Its own client connects again when that is done: else it may take the session back first."""
    client, connection = session.wire._client, session.wire._connection
    connect, done = connection._connect, threading.Event()

    def afterwards(*address: Any) -> Any:
        done.wait(LONG)
        return connect(*address)

    connection._connect = afterwards
    try:
        assert close_session(port, client._session_id, client._session_passwd)
    finally:
        done.set()
        connection._connect = connect


def close_session(port: int, session_id: int, password: bytes) -> bool:
    """By another connection that says the same id and password, and closes it in the same breath:
    else the two would go on taking the session away from one another. Whether there was one, or may
    have been: it is not always heard."""
    connect = Connect(0, 0, 30000, session_id, password, False).serialize()
    close = struct.pack("!ii", 1, -11)
    answer = b""
    with socket.create_connection((HOST, port), LONG) as link:
        link.sendall(b"".join(struct.pack("!i", len(part)) + part for part in (connect, close)))
        try:
            while chunk := link.recv(4096):
                answer += chunk
        except ConnectionResetError:  # it does not wait for the second when it refuses the first
            pass
    return not answer or int.from_bytes(answer[8:12], "big") > 0


def nodes(client: Any, path: str) -> list[str]:
    try:
        return list(client.get_children(path))
    except NoNodeError:
        return []


class Raw:
    """The backend itself, and what it reports."""

    def __init__(self, url: str) -> None:
        self.port = ThreadPort()
        self.backend = ZooKeeperBackend.from_url(parse(url))
        self.losses: list[str] = []
        self.backend.open(self.port, self)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        drive(self.backend.close())

    def lost(self, owner: str, reason: str) -> None:
        self.losses.append(owner)

    def certain_until(self, owner: str, moment: float) -> None: ...

    def grant(self, name: str, ttl: float = 30.0) -> Grant:
        claim = Claim(name, uuid.uuid4().hex, ttl=ttl)
        answer = drive(self.backend.attempt(claim, True, self.port.now() + LONG))
        assert isinstance(answer, Grant)
        return answer

    def write(self, name: str, value: bytes) -> Cell:
        deadline = self.port.now() + LONG
        answer = drive(
            self.backend.cell_write(
                name, value, expect=None, fence=None, ttl=None, deadline=deadline
            )
        )
        assert isinstance(answer, Cell)
        return answer

    def read(self, name: str, within: float) -> Cell | None:
        return drive(self.backend.cell_read(name, self.port.now() + within))
