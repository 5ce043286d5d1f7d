"""The floor of locks in ZooKeeper: kazoo's create of an ephemeral sequential node, and its delete.

Two round trips, each a write of the ensemble. It looks at nothing, so it cannot tell who holds.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]

kazoo: Any = importlib.import_module("kazoo.client")  # as in filelock.py


class Node:
    def __init__(self, client: Any, name: str) -> None:
        client.ensure_path(f"/raw/{name}")
        self._client, self._prefix = client, f"/raw/{name}/node-"

    def acquire(self, timeout: float | None) -> object:
        self._path = self._client.create(self._prefix, b"", ephemeral=True, sequence=True)
        return self._path

    def release(self) -> None:
        self._client.delete(self._path)


class Raw(Adapter):
    version = f"kazoo {version('kazoo')}"

    def __init__(self, address: str) -> None:
        self._client = kazoo.KazooClient(address)
        self._client.start()

    def make(self, name: str) -> Node:
        return Node(self._client, name)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


def connect(target: str, **options: Any) -> Adapter:
    return Raw(target)
