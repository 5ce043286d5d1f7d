"""The floor of hand-over in ZooKeeper: a delete, the watch's event, a list; kazoo's plain calls.

What ZooKeeper's own page of recipes says, and no more: nothing is found again after a failure,
nobody can give up, a session's end is not noticed.
"""

from __future__ import annotations

import importlib
import threading
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

kazoo: Any = importlib.import_module("kazoo.client")  # as in filelock.py


class Place:
    def __init__(self, client: Any, name: str) -> None:
        self._path = f"/bare/{name}"
        client.ensure_path(self._path)
        self._client = client

    def acquire(self, timeout: float | None) -> bool:
        client, path = self._client, self._path
        self._node = client.create(f"{path}/node-", b"", ephemeral=True, sequence=True)
        own = self._node.rpartition("/")[2]
        while True:
            line = sorted(client.get_children(path))
            index = line.index(own)
            if index == 0:
                return True
            gone = threading.Event()
            if client.exists(f"{path}/{line[index - 1]}", lambda _event, gone=gone: gone.set()):
                gone.wait()

    def release(self) -> None:
        self._client.delete(self._node)


class Recipe(Adapter):
    version = f"kazoo {version('kazoo')}"

    def __init__(self, address: str) -> None:
        self._client = kazoo.KazooClient(address)
        self._client.start()

    def make(self, name: str) -> Place:
        return Place(self._client, name)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


def connect(target: str, **options: Any) -> Adapter:
    return Recipe(target)
