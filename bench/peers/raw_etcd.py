"""The floor of locks in etcd: one transaction, one deletion, encoded once, over bare grpcio.

Two round trips, each a write of the cluster. The transaction also reads who is first, as a lock
must; nobody looks at the answer, so it cannot tell who holds.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers.base import Adapter
from bench.peers.etcd_messages import (
    DELETE,
    GRANT,
    TXN,
    delete,
    first_of,
    granted,
    lease_of,
    put_if_absent,
)  # fmt: skip

__all__ = ["connect"]

grpc: Any = importlib.import_module("grpc")  # as in filelock.py


class Exchange:
    def __init__(self, raw: Raw, name: str) -> None:
        key = f"raw/{name}/{raw.lease:x}".encode()
        self._txn, self._delete = raw.call(TXN), raw.call(DELETE)
        self._take = put_if_absent(key, raw.lease, [first_of(f"raw/{name}/".encode())])
        self._give = delete(key)

    def acquire(self, timeout: float | None) -> object:
        return self._txn(self._take)

    def release(self) -> None:
        self._delete(self._give)


class Raw(Adapter):
    version = f"grpcio {grpc.__version__}"

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address.partition(",")[0])
        self.lease = granted(self.call(GRANT)(lease_of(3600)))

    def call(self, method: str) -> Any:
        return self._channel.unary_unary(method)  # bytes in, bytes out

    def make(self, name: str) -> Exchange:
        return Exchange(self, name)

    def close(self) -> None:
        self._channel.close()


def connect(target: str, **options: Any) -> Adapter:
    return Raw(target)
