"""What the optimistic strategy remembers, without a database."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from holdfast.backends.common import Tombstones, Written
from holdfast.backends.sql.optimistic import OptimisticBackend
from holdfast.backends.sql.session import Result
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Busy, Claim

THREADS = 4


class Taken:
    """A database in which somebody has every name for a second more."""

    async def ask(self, *_: Any) -> Result:
        return Result([(1, b"somebody", 1_000_000, 0, b"{}")], 1)


class Nobody:
    def perhaps(self, now: float) -> None: ...


class Words:
    peek = ""


class Backend:
    _words = Words()
    _desk = Taken()
    _sweeper = Nobody()

    def __init__(self) -> None:
        self._port = ThreadPort()
        self._tombstones = Tombstones()
        self._info = Written(str.encode)

    def _look_again(self, claim: Claim, queue: bool) -> None: ...


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_threads_that_forget_the_same_withdrawals_are_not_in_each_others_way() -> None:
    for _ in range(20):
        backend = Backend()
        for number in range(3000):  # each was withdrawn twice, long ago
            backend._tombstones.bury(Claim("x", f"{number // 2}"), 0.0)
        together = threading.Barrier(THREADS)
        answers: list[object] = []

        def attempt(
            backend: Backend = backend,
            together: threading.Barrier = together,
            answers: list[object] = answers,
        ) -> None:
            together.wait()
            claim = Claim("x", "me")
            asked = OptimisticBackend.attempt(cast(Any, backend), claim, False, math.inf)
            try:
                answers.append(drive(asked))
            except Exception as error:  # what the race did
                answers.append(error)

        threads = [threading.Thread(target=attempt) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(answer) for answer in answers] == [Busy] * THREADS, answers
        assert not backend._tombstones.left()
