"""The floor of hand-over in etcd: a deletion, the watch's event, a read; bare calls of grpcio.

What etcd's own mutex does, and no more: nothing is found again after a failure, nobody can give up,
a lease's end is not noticed. All watches of a client are on one stream.
"""

from __future__ import annotations

import importlib
import itertools
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from bench.peers.base import Adapter
from bench.peers.etcd_messages import (
    DELETE,
    GRANT,
    RANGE,
    TXN,
    WATCH,
    cancel,
    delete,
    granted,
    last_before,
    lease_of,
    own,
    predecessor,
    put_if_absent,
    ranged_second,
    revision,
    watch,
    watched_and_gone,
)  # fmt: skip

__all__ = ["connect"]

grpc: Any = importlib.import_module("grpc")  # as in filelock.py


class Place:
    def __init__(self, recipe: Recipe, name: str) -> None:
        line = f"bare/{name}/".encode()
        self._key = line + b"%x" % next(recipe.numbers)
        self._recipe, self._line = recipe, line
        self._put = put_if_absent(self._key, recipe.lease, [own(line)])
        self._delete = delete(self._key)

    def acquire(self, timeout: float | None) -> bool:
        recipe = self._recipe
        answer = recipe.txn(self._put)
        seen = created = revision(answer)
        before = predecessor(ranged_second(answer), self._key)
        while before:
            recipe.gone(before, seen + 1).wait()
            answer = recipe.read(last_before(self._line, created))
            seen, before = revision(answer), predecessor(answer)
        return True

    def release(self) -> None:
        self._recipe.delete(self._delete)


class Recipe(Adapter):
    version = f"grpcio {grpc.__version__}"
    numbers = itertools.count(int.from_bytes(os.urandom(5), "big"))

    def __init__(self, address: str) -> None:
        channel = self._channel = grpc.insecure_channel(address.partition(",")[0])
        self.txn, self.delete, self.read = map(channel.unary_unary, (TXN, DELETE, RANGE))
        self.lease = granted(channel.unary_unary(GRANT)(lease_of(3600)))
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting: dict[int, threading.Event] = {}
        self._watches = itertools.count(1)
        self._events = channel.stream_stream(WATCH)(self._requests())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _requests(self) -> Iterator[bytes]:
        while (request := self._said.get()) is not None:
            yield request

    def _listen(self) -> None:
        try:
            for answer in self._events:
                number = watched_and_gone(answer)
                if number in self._waiting:
                    self._said.put(cancel(number))
                    self._waiting.pop(number).set()
        except grpc.RpcError:
            pass  # cancelled

    def gone(self, key: bytes, since: int) -> threading.Event:
        """Set when this key is deleted."""
        number, event = next(self._watches), threading.Event()
        self._waiting[number] = event
        self._said.put(watch(number, key, since))
        return event

    def make(self, name: str) -> Place:
        return Place(self, name)

    def close(self) -> None:
        self._events.cancel()
        self._said.put(None)
        self._thread.join(5)
        self._channel.close()


def connect(target: str, **options: Any) -> Adapter:
    return Recipe(target)
