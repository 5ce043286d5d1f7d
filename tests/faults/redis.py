"""What the tests of the redis backend's faults have in common."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import holdfast
from holdfast.ports.clock import now
from tests.waiting import until

SOON = 10.0
_numbers = itertools.count()


def fresh(url: str, **options: object) -> str:
    """The URL with a prefix that nobody has used, and these options."""
    values = {"prefix": f"f{next(_numbers)}", **options}
    mark = "&" if "?" in url else "?"
    return url + mark + "&".join(f"{name}={value}" for name, value in values.items())


def in_line(locks: holdfast.Locks, count: int, name: str = "x") -> None:
    until(lambda: sum(len(i.waiters) for i in locks.inspect(name)) == count, f"{count} in line")


class Waiter:
    """An acquire in a thread: what came of it, and when."""

    def __init__(self, acquire: Callable[[], Any]) -> None:
        self._acquire = acquire
        self.lease: Any = None
        self.error: BaseException | None = None
        self.at = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.lease = self._acquire()
        except BaseException as error:
            self.error = error
        self.at = now()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, patience: float = 30.0) -> Any:
        self._thread.join(patience)
        assert self.done, "it waits for ever"
        if self.error is not None:
            raise self.error
        return self.lease


@contextmanager
def waiting(lock: holdfast.Lock, timeout: float = 20.0) -> Iterator[Waiter]:
    waiter = Waiter(lambda: lock.acquire(timeout=timeout))
    try:
        yield waiter
    finally:
        waiter._thread.join(timeout + 5)


@contextmanager
def stranger(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that is no Redis, and speaks so to whoever comes; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    talks: list[threading.Thread] = []

    def talk(link: socket.socket) -> None:
        with link:
            try:
                speak(link)
            except OSError:
                pass  # it has gone

    def serve() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            talks.append(threading.Thread(target=talk, args=(link,)))
            talks[-1].start()

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        server.join()
        for thread in talks:
            thread.join()


def endlessly(link: socket.socket) -> None:
    """Says something that never ends; for so long that nobody takes it for an answer in time."""
    end = time.monotonic() + 3 * SOON
    while time.monotonic() < end:
        link.sendall(b"+" + b"x" * 65536)


def agreeing(link: socket.socket) -> None:
    """Says yes to everything."""
    while link.recv(4096):
        link.sendall(b"+OK\r\n" * 9)


def asking_back(link: socket.socket) -> None:
    link.recv(100)
    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
