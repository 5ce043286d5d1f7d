"""What an interrupt, or what somebody else does at that very moment, once broke: one test each.

What each was and how it showed is in docs/concepts/found-bugs.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.found.memory import store_of
from tests.waiting import until

import holdfast
from holdfast.ports.clock import now


class Struck(dict[str, Any]):
    """Ctrl-C just after the first thing was taken from it."""

    armed = True

    def pop(self, *arguments: Any) -> Any:
        taken = super().pop(*arguments)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return taken


@pytest.mark.req("B3", "KeyboardInterrupt at any line")
def test_a_close_that_is_interrupted_leaves_nobody_believing(locks: holdfast.Locks) -> None:
    """The keeper took the hold from its table, and Ctrl-C struck before it had written down why:
    the second close gave the lock back, and its holder went on believing in it."""
    told = threading.Event()
    lease = locks.lock("x", ttl=60, on_lost=lambda loss: told.set()).acquire()
    assert lease is not None
    keeper = locks._current.keeper
    keeper._holds = Struck(keeper._holds)
    with pytest.raises(KeyboardInterrupt):
        locks.close()
    assert not lease.held
    assert told.wait(10)
    locks.close()
    assert store_of(locks).inspect("", False) == []
    assert lease.release() is False


@pytest.mark.req("B3", "law 5", "KeyboardInterrupt at any line")
def test_a_look_that_is_interrupted_tells_of_the_loss_all_the_same(locks: holdfast.Locks) -> None:
    """The holder's own look noticed that its time was over, and Ctrl-C struck there."""
    told = threading.Event()
    lease = locks.lock("x", ttl=60, on_lost=lambda loss: told.set()).acquire()
    assert lease is not None
    keeper = locks._current.keeper
    keeper._holds = Struck(keeper._holds)
    lease._hold.until = now()
    with pytest.raises(KeyboardInterrupt):
        lease.lost.is_set()
    assert told.wait(10)
    assert lease.lost.wait(5) is True
    assert lease.release() is False
    until(lambda: keeper.idle, "it is given back")


@pytest.mark.req("law 5", "R3")
def test_a_release_while_the_loss_is_written_down_says_that_it_was_lost(
    locks: holdfast.Locks,
) -> None:
    """The keeper had taken the hold from its table, and another thread released it before the
    keeper could write down that it was lost: `release` said True, and `with` raised nothing."""
    lease = locks.lock("x", ttl=60).acquire()
    assert lease is not None
    taken, go = threading.Event(), threading.Event()

    class Slow(dict[str, Any]):
        def pop(self, *arguments: Any) -> Any:
            hold = super().pop(*arguments)
            if threading.current_thread() is loser:
                taken.set()
                go.wait(10)
            return hold

    keeper = locks._current.keeper
    keeper._holds = Slow(keeper._holds)
    said: list[bool] = []
    loser = threading.Thread(target=lambda: keeper.lose(lease._hold, "gone", gone=True))
    releaser = threading.Thread(target=lambda: said.append(lease.release()))
    loser.start()
    assert taken.wait(10)
    releaser.start()
    releaser.join(0.2)
    go.set()
    loser.join(10)
    releaser.join(10)
    assert said == [False]


@pytest.mark.req("R4")
def test_a_callback_that_comes_with_the_loss_has_no_other_called_twice(
    locks: holdfast.Locks,
) -> None:
    lease = locks.lock("x", ttl=60).acquire()
    assert lease is not None
    calls: list[str] = []
    lease.on_lost(lambda loss: calls.append("first"))
    hold, keeper = lease._hold, locks._current.keeper

    class Late(list[Any]):
        def lose(self) -> None:
            if not hold.end:
                keeper.lose(hold, "gone", gone=True)

        def __iter__(self) -> Iterator[Any]:
            before = list.__iter__(self)
            self.lose()
            return before

        def append(self, item: Any) -> None:
            self.lose()
            super().append(item)

    hold.callbacks = Late(hold.callbacks)
    lease.on_lost(lambda loss: calls.append("second"))
    until(lambda: "second" in calls, "it is told")
    time.sleep(0.1)
    assert sorted(calls) == ["first", "second"]


@pytest.mark.req("R4", "R12")
def test_a_callback_that_comes_while_an_inner_lease_leaves_is_kept(locks: holdfast.Locks) -> None:
    lock = locks.lock("x", ttl=60, reentrant=True)
    outer, inner = lock.acquire(), lock.acquire()
    assert outer is not None
    assert inner is not None
    inner.on_lost(lambda loss: None)
    hold, told, listen = outer._hold, threading.Event(), outer.on_lost

    class Late(list[Any]):
        armed = True

        def __iter__(self) -> Iterator[Any]:
            before = iter(self[:])
            if self.armed:
                self.armed = False
                listen(lambda loss: told.set())  # by another thread, in fact
            return before

    hold.callbacks = Late(hold.callbacks)
    inner.release()
    locks._current.keeper.lose(hold, "gone", gone=True)
    assert told.wait(10)
