"""What the tests of the redis backend's faults have in common."""

from __future__ import annotations

import itertools
import threading
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
