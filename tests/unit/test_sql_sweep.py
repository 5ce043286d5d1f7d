"""When the sweeper makes its rounds, and when all of them are made, without a database."""

from __future__ import annotations

import logging

import pytest

from holdfast.backends.sql import sweep
from holdfast.backends.sql.sweep import Sweeper
from holdfast.errors import Unavailable
from holdfast.ports.thread import ThreadPort, drive


class Rounds:
    def __init__(self, *answers: tuple[int, bytes | None] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []

    async def __call__(
        self, after: bytes, idle: float, deadline: float
    ) -> tuple[int, bytes | None]:
        self.asked.append(after)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_sweep_goes_on_until_a_round_says_that_it_was_the_last() -> None:
    # Also if a round found nothing, and from the beginning if it says so.
    rounds = Rounds((3, b"m"), (0, b"x"), (2, b""), (1, None))
    assert drive(Sweeper(ThreadPort(), rounds, 1.0).sweep(0.0, 0.0)) == 6
    assert rounds.asked == [b"", b"m", b"x", b""]


def test_a_client_makes_a_round_when_it_is_time_and_goes_on_where_it_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = Rounds((3, b"m"), Unavailable("away"), RuntimeError("a bug"), (0, None), (0, None))
    sweeper = Sweeper(ThreadPort(), rounds, 1.0)
    with caplog.at_level(logging.INFO, "holdfast"):
        for _ in range(5):
            sweeper._next = 0.0
            drive(sweeper.tidy())
            drive(sweeper.tidy())  # not again so soon
    assert rounds.asked == [b"", b"m", b"m", b"m", b""]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert sweeper._next - ThreadPort().now() <= 1.5 * sweep.EVERY
