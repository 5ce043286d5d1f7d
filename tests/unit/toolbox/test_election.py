"""Elections: what leaders and observers learn of one another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.toolbox.faulty import Answer
from tests.waiting import until

import holdfast
from holdfast.types import Cell


@pytest.mark.req("B5")
def test_what_a_dropped_election_led_is_given_back(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    assert locks.election("x").campaign() is not None  # nobody keeps it
    leadership = other.election("x").campaign(timeout=10)
    assert leadership
    assert leadership.release()


@pytest.mark.req("B5")
def test_an_election_keeps_what_it_has_won(locks: holdfast.Locks, other: holdfast.Locks) -> None:
    election = locks.election("x")
    assert election.campaign("here")
    assert other.election("x").campaign(timeout=0) is None
    assert election.resign() is True
    assert election.resign() is False


@pytest.mark.req("B5")
def test_a_leader_may_resign_by_itself_and_other_losses_are_its_own(locks: holdfast.Locks) -> None:
    election = locks.election("x")
    assert election.run_when_leader(lambda leadership: leadership.release()) is True

    def lose(leadership: holdfast.Leadership) -> None:
        raise holdfast.LeaseLost("another", name="another", reason="evicted")

    with pytest.raises(holdfast.LeaseLost, match="another"):
        election.run_when_leader(lose)
    assert election.leader() is None


@pytest.mark.req("B5")
def test_a_leader_that_was_done_before_it_lost_is_not_called_again(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    calls: list[int] = []

    def work(leadership: holdfast.Leadership) -> str:
        calls.append(1)
        other.evict("election:x")  # which nobody knows until it is given back
        return "done"

    assert locks.election("x").run_when_leader(work) == "done"
    assert calls == [1]


@pytest.mark.req("B5")
def test_nobody_can_say_that_nobody_leads_and_the_line_says_it(
    locks: holdfast.Locks, other: holdfast.Locks, caplog: pytest.LogCaptureFixture
) -> None:
    backend: Any = locks._engine().backend
    leadership = locks.election("x").campaign("here")
    assert leadership is not None

    async def away(name: str, value: bytes | None, **how: Any) -> Answer:
        raise holdfast.Unavailable("away")

    locks._engine().request_timeout = 0.05
    backend.cell_write = away
    assert leadership.release() is True
    assert "could not say" in caplog.text
    assert other.election("x").leader() is None


@pytest.mark.req("B5")
def test_closed_clients_refuse_all_tools(url: str) -> None:
    locks = holdfast.connect(url)
    once, election = locks.once("x", 10, lambda: 1), locks.election("x")
    tools: list[Callable[[], Any]] = [
        once.get, once.invalidate, election.campaign, election.leader,
        lambda: next(election.observe()), locks.latch("x", 1).count_down,
        locks.latch("x", 1).wait, locks.barrier("x", 2).wait, locks.barrier("x", 2).reset,
    ]  # fmt: skip
    locks.close()
    for tool in tools:
        with pytest.raises(holdfast.Closed):
            tool()


@pytest.mark.req("B5")
def test_closing_a_client_ends_its_waits(url: str) -> None:
    locks = holdfast.connect(url)
    leadership = locks.election("x").campaign()
    ended: list[type[BaseException]] = []

    def wait(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            ended.append(type(error))

    threads = [
        threading.Thread(target=wait, args=(work,))
        for work in (locks.election("x").campaign, locks.barrier("x", 2).wait)
    ]
    for thread in threads:
        thread.start()
    with holdfast.connect(url) as other:
        until(lambda: len(other.inspect()) == 2 and other.inspect("election:")[0].waiters)
        locks.close()
        for thread in threads:
            thread.join(30)
        assert sorted(error.__name__ for error in ended) == ["BrokenBarrier", "Closed"] or (
            ended == [holdfast.Closed, holdfast.Closed]
        )
        assert leadership is not None
        assert not leadership.held


@pytest.mark.req("B5", "names")
def test_names_that_would_be_too_long_in_the_store_are_refused(locks: holdfast.Locks) -> None:
    makers: list[Callable[[str], Any]] = [
        lambda name: locks.once(name, 10, lambda: 1),
        locks.election,
        lambda name: locks.latch(name, 1),
        lambda name: locks.barrier(name, 2),
        locks.optimistic,
    ]
    for make in makers:
        make("x" * 1000)
        for name in ("x" * 1024, "", "\ud800"):
            with pytest.raises(holdfast.Misconfigured):
                make(name)


@pytest.mark.req("B5")
def test_a_wait_for_a_cell_that_fails_now_and_then_is_not_as_silent_as_it_was_long(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    engine: Any = locks._engine()
    wait, port = engine.backend.cell_wait, engine.port
    now = port.now
    waited: list[float] = []

    async def fails_once(name: str, version: int, deadline: float) -> Cell | None:
        if not waited:
            waited.append(1.0)
            port.now = lambda: now() + engine.request_timeout + 1  # so long it was silent, and well
            raise holdfast.Unavailable("a hiccup")
        other.latch("x", 1).count_down()
        cell: Cell | None = await wait(name, version, deadline)
        return cell

    engine.backend.cell_wait = fails_once
    assert locks.latch("x", 1).wait()


@pytest.mark.req("B5")
def test_what_is_kept_ends_within_ten_years(locks: holdfast.Locks) -> None:
    """As a lock's ttl: etcd and Redis refuse more when they are asked, or do a half of it."""
    makers: list[Callable[[float], Any]] = [
        lambda keep: locks.latch("x", 1, keep=keep),
        lambda keep: locks.barrier("x", 2, keep=keep),
    ]
    for make in makers:
        make(1e8)
        for keep in (1e12, 1e300, 0, -1):
            with pytest.raises(holdfast.Misconfigured):
                make(keep)
