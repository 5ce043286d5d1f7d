"""The memory store behind a socket: the smallest backend that several processes can share.

It exists so that the suite's tests of processes run, and can fail, in this project's quick tests;
the servers of the real backends are slower to start. It has no push, so waiters look every few
milliseconds, no cells, and no hooks: a strategy may be as small as this.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, cast

import holdfast
from holdfast.backends.local import Gone, Held, InLine
from holdfast.backends.memory import MemoryBackend, Store
from holdfast.backends.url import Url
from holdfast.errors import Unavailable
from holdfast.ports import clock
from holdfast.testing.conformance import Strategy
from holdfast.types import Claim, LockInfo
from tests.servers.home import Home

LOOK = 0.01


class Server:
    """A thread for each connection; every request is one method of the store."""

    def __init__(self) -> None:
        self.store = Store(clock.now, time.time)
        self._home = Home("served")
        self.path = str(self._home.path / "s")
        self._listener = Listener(self.path, "AF_UNIX", backlog=64)
        self._open = True
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            if not self._open:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        with connection:
            while True:
                try:
                    method, args = connection.recv()
                    connection.send(self._method(method)(*args))
                except (EOFError, OSError):
                    return

    def _method(self, name: str) -> Callable[..., Any]:
        return self._attempt if name == "attempt" else cast(Any, getattr(self.store, name))

    def _attempt(self, claim: Claim, queue: bool) -> Held | InLine | Gone:
        return self.store.attempt(claim, (lambda _: lambda held: None) if queue else None)

    def close(self) -> None:
        # Not by closing the listener under its thread: that thread may be about to accept from a
        # file descriptor that the next server is given meanwhile, and would serve its clients.
        self._open = False
        Client(self.path).close()
        self._accepting.join()
        self._listener.close()
        self._home.close()


class RemoteStore:
    """As much of a `Store` as a backend uses, over a connection for each thread and process."""

    entered = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._mine = threading.local()

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            if getattr(self._mine, "pid", 0) != os.getpid():  # a forked child makes its own
                self._mine.connection, self._mine.pid = Client(self._path), os.getpid()
            self._mine.connection.send((method, args))
            return self._mine.connection.recv()
        except (EOFError, OSError) as error:
            raise Unavailable(str(error)) from error

    def attempt(self, claim: Claim, enlist: Callable[[Claim], object] | None) -> Any:
        answer = self._ask("attempt", claim, enlist is not None)
        if isinstance(answer, InLine) and enlist is not None:
            enlist(claim)
        return _soon(answer)

    def look(self, claim: Claim) -> Any:
        return _soon(self._ask("look", claim))

    def renew(self, claims: Sequence[Claim]) -> list[bool]:
        return cast(list[bool], self._ask("renew", claims))

    def release(self, claim: Claim, tombstone: bool) -> bool:
        return cast(bool, self._ask("release", claim, tombstone))

    def withdraw(self, claim: Claim, tombstone: bool) -> None:
        self._ask("withdraw", claim, tombstone)

    def evict(self, name: str) -> int:
        return cast(int, self._ask("evict", name))

    def inspect(self, prefix: str, exact: bool) -> list[LockInfo]:
        return cast(list[LockInfo], self._ask("inspect", prefix, exact))


def _soon(answer: Any) -> Any:
    """Nobody calls us, so we look."""
    return answer._replace(look_at=clock.now() + LOOK) if isinstance(answer, InLine) else answer


class ServedBackend(MemoryBackend):
    capabilities = replace(MemoryBackend.capabilities, cross_process=True, cells=False)

    @classmethod
    def from_url(cls, url: Url) -> ServedBackend:
        return cls(cast(Store, RemoteStore(url.path)))


holdfast.register("served", f"{__name__}:ServedBackend")


class ServedStrategy(Strategy):
    name = "served"
    short_ttl = 0.15
    child_imports = (__name__,)
    server: Server | None = None

    def url(self) -> str:
        self.stop_server()
        self.server = Server()
        return f"served://{self.server.path}"

    def stop_server(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
