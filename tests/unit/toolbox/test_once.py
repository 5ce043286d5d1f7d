"""`once`: which value is kept, and how long it is good."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.toolbox.faulty import Answer, Faulty

import holdfast
from holdfast.ports.thread import drive, outside
from holdfast.types import CellConflict, Mode, Unknown


def slowly(locks: holdfast.Locks, value: str) -> Callable[[], str]:
    """A computation that takes twenty seconds, by the client's clock."""
    port: Any = locks._engine().port
    now = port.now
    late = 0.0
    port.now = lambda: now() + late

    def compute() -> str:
        nonlocal late
        late += 20.0
        return value

    return compute


@pytest.mark.req("R70", "B5", "law 1")
def test_the_time_of_a_value_counts_from_before_it_was_computed(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(locks)
    token = locks.once("x", 100, slowly(locks, "slow"), ahead=30, lease=1000)
    assert token.get() == "slow"
    kept, fresh = faulty.written
    assert kept["ttl"] <= 80
    assert fresh["ttl"] <= 50
    assert kept["fence"] is not None
    assert fresh["fence"] == kept["fence"]


@pytest.mark.req("R70", "B5")
def test_what_took_longer_than_its_time_is_not_kept(
    locks: holdfast.Locks, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = Faulty(locks)
    assert locks.once("x", 10, slowly(locks, "too slow"), lease=1000).get() == "too slow"
    assert faulty.written == []
    assert "longer than its ttl" in caplog.text


@pytest.mark.req("R70", "B5")
def test_a_computation_that_lost_its_claim_writes_nothing(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    """Though nobody else has written yet: its value may be worthless already."""
    faulty = Faulty(locks)
    computed: list[int] = []

    def compute() -> str:
        computed.append(1)
        if len(computed) == 1:
            other.evict("once:x")
            for hold in list(locks._engine().keeper._holds.values()):
                if hold.claim.name == "once:x":
                    with pytest.raises(holdfast.LeaseLost):
                        drive(locks._engine().renew(hold))
            assert faulty.written == []
        return f"value {len(computed)}"

    assert locks.once("x", 100, compute).get() == "value 2"


@pytest.mark.req("R70", "B5", "law 2")
def test_a_value_whose_answer_is_lost_is_stored(locks: holdfast.Locks) -> None:
    faulty = Faulty(locks)

    def compute() -> bytes:
        faulty.losing = 2
        return b"value"

    token = locks.once("x", 100, compute)
    assert token.get() == b"value"
    assert token.get() == b"value"
    assert len(faulty.written) == 4


def between(locks: holdfast.Locks, do: Callable[[], Any]) -> list[Answer]:
    """Done between the two writes of a value; how the second is answered then."""
    backend: Any = locks._engine().backend
    write = backend.cell_write
    answers: list[Answer] = []

    async def then_write(name: str, value: bytes | None, **how: Any) -> Answer:
        second = name.startswith("once-fresh:") and value is not None
        if second:
            backend.cell_write = write
            outside(do)
        answer: Answer = await write(name, value, **how)
        if second:
            answers.append(answer)
        return answer

    backend.cell_write = then_write
    return answers


@pytest.mark.req("R70", "B5", "law 7")
@pytest.mark.parametrize("fails", ["slow", "killed"])
def test_who_was_stopped_between_its_two_writes_replaces_nothing_newer(
    locks: holdfast.Locks, other: holdfast.Locks, fails: str
) -> None:
    """Though the newer one has no `fresh` either: it was slow, or died between its own two."""

    def slow() -> str:
        port.now = lambda: now() + (20 if fails == "slow" else 0)
        return "newer"

    def meanwhile() -> None:
        for name in ("once:x", "using:x"):
            other.evict(name)  # as if we had been stopped for longer than the lease
        if fails == "killed":
            between(other, lambda: 1 / 0)
        newer.get()

    port: Any = other._engine().port
    now = port.now
    newer = other.once("x", 100, slow, ahead=90, lease=1000)
    answers = between(locks, meanwhile)
    old = locks.once("x", 100, lambda: "old", ahead=90, lease=1000)
    assert old.get() == "old"
    assert isinstance(answers[0], CellConflict)
    assert other.once("x", 100, lambda: "next", ahead=90).get() != "old"


@pytest.mark.req("R70", "B5")
def test_a_value_that_is_forgotten_between_its_two_writes_stays_forgotten(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    theirs = other.once("x", 100, lambda: "next")
    between(locks, lambda: theirs.invalidate("value"))
    assert locks.once("x", 100, lambda: "value").get() == "value"
    assert theirs.get() == "next"


@pytest.mark.req("R70", "B5", "law 1")
def test_a_write_that_is_repeated_does_not_make_a_value_last_longer(locks: holdfast.Locks) -> None:
    faulty = Faulty(locks)
    port: Any = locks._engine().port
    now = port.now
    late = 0.0
    port.now = lambda: now() + late

    def pass_time() -> None:
        nonlocal late
        late += 1.0

    def compute() -> str:
        faulty.losing, faulty.then = 1, pass_time
        return "value"

    assert locks.once("x", 100, compute, ahead=30, lease=1000).get() == "value"
    first, again, fresh = (how["ttl"] for how in faulty.written)
    assert again <= first - 1
    assert fresh <= again - 30


@pytest.mark.req("R70", "B5", "law 2")
def test_a_value_that_cannot_be_forgotten_is_not_asked_for_in_a_loop(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    token = locks.once("x", 100, lambda: "value")
    token.get()
    engine: Any = locks._engine()
    engine.request_timeout = 0.2
    asked: list[str] = []

    async def silent(name: str, value: bytes | None, **how: Any) -> Answer:
        asked.append(name)
        return Unknown("silent")

    engine.backend.cell_write = silent
    with pytest.raises(holdfast.Unavailable):
        token.invalidate("value")
    assert len(asked) < 100


@pytest.mark.req("R70", "B5")
def test_an_expired_value_inside_hold_is_an_error_and_no_deadlock(locks: holdfast.Locks) -> None:
    token = locks.once("x", 100, lambda: "value")
    with token.hold():
        token.invalidate("value")
        with pytest.raises(holdfast.Misconfigured, match="wait for itself"):
            token.get()


@pytest.mark.req("R70", "B5")
def test_a_try_to_hold_what_somebody_computes_is_no_error(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    mine = locks.once("x", 100, lambda: "mine").hold()

    def compute() -> str:
        assert mine.acquire(blocking=False) is None
        assert mine.acquire(timeout=0.01) is None
        with pytest.raises(holdfast.AcquireTimeout):
            locks.once("x", 100, lambda: "mine", timeout=0).hold().__enter__()
        return "theirs"

    assert other.once("x", 100, compute).get() == "theirs"

    def impatient() -> str:
        raise holdfast.AcquireTimeout("of the computation itself")

    with pytest.raises(holdfast.AcquireTimeout, match="computation itself"):
        locks.once("y", 100, impatient).hold().acquire(blocking=False)


@pytest.mark.req("R70", "B5")
def test_a_computation_that_gives_up_is_told_of_though_the_old_value_is_good(
    locks: holdfast.Locks, caplog: pytest.LogCaptureFixture
) -> None:
    computed: list[int] = []

    def compute() -> str:
        computed.append(1)
        if len(computed) > 1:
            raise holdfast.AcquireTimeout("of the computation itself")
        return "old"

    token = locks.once("x", 100, compute, ahead=99.99)
    assert token.get() == "old"
    time.sleep(0.02)
    assert [token.get() for _ in range(3)] == ["old"] * 3
    assert len(computed) == 2
    assert "computation itself" in caplog.text


@pytest.mark.req("R70", "B5")
def test_a_value_that_is_over_at_once_is_not_computed_for_ever(locks: holdfast.Locks) -> None:
    computed: list[int] = []

    def compute() -> str:
        computed.append(1)
        time.sleep(0.02)
        return "over"

    with pytest.raises(holdfast.Unavailable, match="too short"):
        locks.once("x", 0.01, compute, ahead=0).hold().acquire(timeout=0.01)
    assert len(computed) == 3


@pytest.mark.req("R70", "B5")
@pytest.mark.parametrize("timeout", [-1.0, 0.0])
def test_a_value_that_others_invalidate_all_the_time_is_tried_for_as_long_as_there_is_time(
    locks: holdfast.Locks, other: holdfast.Locks, timeout: float
) -> None:
    backend: Any = locks._engine().backend
    attempt = backend.attempt
    invalidated: list[str] = []

    async def late(claim: Any, *rest: Any) -> Any:
        if claim.name.startswith("using:") and claim.mode is Mode.SHARED and len(invalidated) < 10:
            invalidated.append(claim.owner)
            outside(lambda: other.once("x", 100, lambda: "value").invalidate("value"))
        return await attempt(claim, *rest)

    backend.attempt = late
    hold = locks.once("x", 100, lambda: "value").hold()
    if timeout:
        with hold as using:
            assert using.value == "value"
        assert len(set(invalidated)) == 10
    else:
        with pytest.raises(holdfast.Unavailable, match="invalidated all the time"):
            hold.acquire(blocking=False)
        assert len(invalidated) == 3


@pytest.mark.req("R70", "B5")
def test_a_claim_that_is_lost_each_time_is_not_computed_under_for_ever(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    computed: list[int] = []

    def compute() -> str:
        computed.append(1)
        keeper = locks._engine().keeper
        for hold in list(keeper._holds.values()):
            keeper.lose(hold, "by this test", gone=False)
        return "vain"

    with pytest.raises(holdfast.Unavailable, match="lost each time"):
        locks.once("x", 100, compute).get()
    assert len(computed) == 3


@pytest.mark.req("R70", "B5", "B3")
def test_threads_that_ask_for_hold_at_once_have_the_same(locks: holdfast.Locks) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            token = locks.once("x", 100, lambda: "value")
            start = threading.Barrier(4)
            got: list[object] = []

            def ask(
                token: Any = token, start: threading.Barrier = start, got: list[object] = got
            ) -> None:
                start.wait()
                got.append(token.hold())

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(set(map(id, got))) == 1
    finally:
        sys.setswitchinterval(before)


@pytest.mark.req("B5")
def test_a_coroutine_function_is_refused_by_the_blocking_client(locks: holdfast.Locks) -> None:
    async def compute() -> str:
        return "value"

    with pytest.raises(holdfast.Misconfigured, match="aio"):
        locks.once("x", 10, compute)
    for ttl, ahead in ((0, None), (10, 10), (10, -1), (float("inf"), None), (1e12, None)):
        with pytest.raises(holdfast.Misconfigured):
            locks.once("x", ttl, lambda: 1, ahead=ahead)
