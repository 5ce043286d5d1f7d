"""What the tests of `zk://` share: clients of servers that are broken on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]

import holdfast
from holdfast.backends.zookeeper import ZooKeeperBackend
from holdfast.backends.zookeeper.session import Session
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


def sessions(locks: holdfast.Locks) -> list[Session]:
    backend = locks._current.backend
    assert isinstance(backend, ZooKeeperBackend)
    return list(backend._pool._current.values())


def until(happened: Callable[[], Any], what: str, timeout: float = LONG) -> float:
    """For what no event tells: when it was first seen to be so."""
    end = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < end, f"{what}: not within {timeout:g} s"
        time.sleep(0.005)
    return time.monotonic()


def nodes(client: Any, path: str) -> list[str]:
    return list(client.get_children(path)) if client.exists(path) else []
