"""What waiting for any of several stripes leaves behind in its client: nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import holdfast


def until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.0005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-stripe"]


@pytest.mark.req("R11", "law 4")
def test_grants_that_came_too_late_are_forgotten() -> None:
    """All stripes are freed at once: each line may be granted before it is left."""
    with holdfast.connect("memory://stripes-late") as locks:
        keeper = locks._engine().keeper
        stripes = locks.stripes("s", 6)
        got: list[holdfast.StripeLease | None] = []
        for _ in range(20):
            everything = stripes.all().acquire()
            assert everything
            waiter = threading.Thread(target=lambda: got.append(stripes.any().acquire(timeout=60)))
            waiter.start()
            until(lambda: sum(len(info.waiters) for info in locks.inspect("s")) == 6, "six lines")
            everything.release()
            waiter.join()
            lease = got.pop()
            assert lease
            assert lease.release() is True
            until(lambda: keeper.idle and not keeper._claims and not threads(), "nothing is left")
            assert locks.inspect() == []


@pytest.mark.req("R11", "law 4")
def test_a_wait_in_vain_leaves_no_threads() -> None:
    with holdfast.connect("memory://stripes-vain") as locks:
        stripes = locks.stripes("s", 4)
        with stripes.all():
            assert stripes.any().acquire(timeout=0.05) is None
            until(lambda: not threads(), "nobody stands in line")
            assert not any(info.waiters for info in locks.inspect())


@pytest.mark.req("R11", "B3")
def test_a_client_that_is_closed_ends_the_wait() -> None:
    with holdfast.connect("memory://stripes-closed") as other:
        locks = holdfast.connect("memory://stripes-closed")
        said: list[BaseException] = []

        def wait() -> None:
            try:
                locks.stripes("s", 3).any().acquire()
            except holdfast.HoldfastError as error:
                said.append(error)

        with other.stripes("s", 3).all():
            waiter = threading.Thread(target=wait)
            waiter.start()
            until(lambda: sum(len(info.waiters) for info in other.inspect()) == 3, "three lines")
            locks.close()
            waiter.join(30)
            assert isinstance(said[0], holdfast.Closed)
            until(lambda: not threads(), "nobody stands in line")
            assert not any(info.waiters for info in other.inspect())
