"""Barriers: who arrives, who dies, and what a lost answer may not do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.unit.toolbox.faulty import Faulty
from tests.waiting import until

import holdfast
from holdfast.core.hold import Hold
from holdfast.ports.thread import drive
from holdfast.toolbox import barrier
from holdfast.toolbox.barrier import State
from holdfast.types import Cell


@pytest.mark.req("B5", "law 2")
def test_an_arrival_whose_answer_is_lost_counts_once(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    faulty = Faulty(locks)
    mine, theirs = locks.barrier("x", 2), other.barrier("x", 2)
    numbers: list[int] = []
    for first, second in ((theirs, mine), (mine, theirs)):
        # Who comes last ends the round by its write; who comes first is in it by its own.
        faulty.losing = 1
        arrived = threading.Thread(target=lambda one=first: numbers.append(one.wait(timeout=60)))
        arrived.start()
        until(lambda: theirs.waiting() == 1)
        assert second.wait(timeout=60) == 1
        arrived.join()
        assert theirs.waiting() == 0
    assert numbers == [0, 0]
    assert faulty.losing == 0


@pytest.mark.req("B5", "law 2")
def test_a_reset_whose_answer_is_lost_does_not_strike_those_who_come_after_it(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    theirs = other.barrier("x", 2)
    theirs.abort()
    faulty = Faulty(locks)
    met: list[int] = []
    party = threading.Thread(target=lambda: met.append(theirs.wait(30)))

    def come() -> None:
        party.start()
        until(theirs.waiting)

    faulty.losing, faulty.then = 1, come
    mine = locks.barrier("x", 2)
    mine.reset()
    assert mine.wait(30) == 1
    party.join(30)
    assert met == [0]


@pytest.mark.req("B5", "law 2")
def test_an_abort_whose_answer_is_lost_does_not_break_what_was_reset_since(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    mine, theirs = locks.barrier("x", 1), other.barrier("x", 1)
    faulty = Faulty(locks)
    faulty.losing, faulty.then = 1, theirs.reset
    mine.abort()
    assert not theirs.broken()
    faulty.refusing, faulty.then = 1, lambda: (theirs.wait(), None)[1]  # it did not arrive
    mine.abort()
    assert theirs.broken()


class Hiccups:
    """In front of a client's looks at lines: the next one fails."""

    def __init__(self, locks: holdfast.Locks) -> None:
        backend: Any = locks._engine().backend
        self._inspect = backend.inspect
        self.left = 0
        backend.inspect = self.inspect

    async def inspect(self, *what: Any) -> Any:
        if self.left:
            self.left -= 1
            raise holdfast.Unavailable("a hiccup")
        return await self._inspect(*what)


@pytest.mark.req("B5")
def test_a_look_at_the_line_that_fails_is_repeated(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    hiccups = Hiccups(locks)
    met: list[int] = []
    party = threading.Thread(target=lambda: met.append(other.barrier("x", 2).wait(30)))
    party.start()
    until(other.barrier("x", 2).waiting)
    hiccups.left = 1
    assert locks.barrier("x", 2).wait(30) == 1
    party.join(30)
    assert met == [0]
    leadership = other.election("x").campaign("leader")
    assert leadership is not None
    with leadership:
        for ask in (locks.election("x").leader, locks.election("x").observe().__next__):
            hiccups.left = 1
            leader = ask()
            assert leader is not None
            assert leader.value == "leader"


@pytest.mark.req("B5", "law 2")
def test_a_party_does_not_meet_itself(locks: holdfast.Locks) -> None:
    faulty = Faulty(locks)
    faulty.losing = 1
    mine = locks.barrier("x", 2)
    party = barrier.Party(locks._engine(), mine._plan)
    hold = drive(party.acquisition.run(True, 10.0))
    assert isinstance(hold, Hold)
    arrival, _ = drive(party._arrive(hold, -1.0))
    assert arrival == barrier.Arrival(0, 0, barrier.WAITS)
    assert mine.waiting() == 1
    party.abandon()


@pytest.mark.req("B5", "law 2")
def test_an_arrival_of_which_nothing_is_known_any_more_says_so(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    """Two rounds went by before it could look: it may have been in the first."""
    faulty = Faulty(locks)
    faulty.losing = 1

    def two_rounds() -> None:
        for _ in range(2):
            other.barrier("x", 1).wait()

    faulty.then = two_rounds
    with pytest.raises(holdfast.Unavailable, match="not known"):
        locks.barrier("x", 1).wait()


@pytest.mark.req("B5")
def test_who_is_slow_to_look_still_learns_how_its_generation_ended(
    locks: holdfast.Locks,
) -> None:
    plan = locks.barrier("x", 2)._plan
    party = barrier.Party(locks._engine(), plan)
    arrival = barrier.Arrival(7, 0, barrier.WAITS)

    def later(state: State) -> int | None:
        return party._met(arrival, Cell(state.data(), 1))

    assert later(State(2, 7, [party.id])) is None
    assert later(State(2, 8, [], ends="t")) == 0
    assert later(State(2, 10, [], ends="trr")) == 0
    for state in (
        State(2, 7, [party.id], "somebody died"),
        State(2, 7, []),  # it was forgotten, and made anew
        State(2, 0, []),
        State(2, 8, [], ends="r"),
        State(2, 10, [], ends="rtt"),
        State(2, 7 + 65, [], ends="t" * 64),
    ):
        with pytest.raises(holdfast.BrokenBarrier):
            later(state)


@pytest.mark.req("B5")
def test_a_party_whose_own_presence_is_lost_does_not_wait_on(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            locks.barrier("x", 2, ttl=0.6).wait(timeout=30)
        except holdfast.HoldfastError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: other.inspect("barrier:") or ended)
    other.evict("barrier:x")
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(ended[0], holdfast.BrokenBarrier)


def arrived_and_dead(locks: holdfast.Locks, parties: int) -> None:
    """As when a party died while it waited, and its lease is over."""
    engine = locks._engine()
    dead = barrier.Party(engine, locks.barrier("x", parties)._plan)
    hold = drive(dead.acquisition.run(True, 10.0))
    assert isinstance(hold, Hold)
    drive(dead._arrive(hold, -1.0))
    drive(engine.release(hold, dead.acquisition))


@pytest.mark.req("B5", "R2", "holder killed -9")
def test_a_party_that_died_is_missed_though_others_live(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    arrived_and_dead(other, 3)
    with pytest.raises(holdfast.BrokenBarrier, match="died"):
        locks.barrier("x", 3, ttl=3.0).wait(timeout=30)


@pytest.mark.req("B5", "R2", "holder killed -9")
def test_the_last_to_arrive_does_not_meet_the_dead(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    arrived_and_dead(other, 2)
    for _ in range(2):
        with pytest.raises(holdfast.BrokenBarrier, match="died"):
            locks.barrier("x", 2).wait(timeout=30)
    locks.barrier("x", 2).reset()
    arrived_and_dead(other, 2)
    with pytest.raises(holdfast.BrokenBarrier, match="died"):
        locks.barrier("x", 2).wait(timeout=0)


@pytest.mark.req("B5")
def test_ids_of_all_parties_fit_in_a_cell() -> None:
    full = ["0" * 16] * barrier.MOST
    assert len(State(barrier.MOST, 2**40, full, "x" * 100, full, "t" * 64).data()) < 65536


@pytest.mark.req("B5")
def test_parties_of_one_object_do_not_take_one_anothers_sight_for_their_own(
    locks: holdfast.Locks,
) -> None:
    """Two threads arrive by one object. The first was stopped before it had kept what it saw, and
    kept it between the second's keeping and looking: the second did not find itself there, and
    said that the barrier was broken."""

    class Shared(barrier.Plan):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "last" and value is not None and len(seen) < 2:
                if not seen or value.version != seen[0].version:
                    seen.append(value)
                value = seen[0]  # the other thread's, which is older
            super().__setattr__(name, value)

    seen: list[Cell] = []
    engine = locks._engine()
    capabilities = engine.backend.capabilities
    plan = barrier.plan("b", 3, capabilities, 60.0, -1.0, 60.0, None)
    shared = Shared(plan.name, plan.parties, plan.want, plan.keep)
    numbers: list[int] = []

    def arrive() -> None:
        numbers.append(drive(barrier.Party(engine, shared).run(20.0)))

    parties = [threading.Thread(target=arrive) for _ in range(3)]
    for number, party in enumerate(parties):
        party.start()
        if number < 2:
            until(lambda: len(seen) == number + 1, "it has arrived")  # noqa: B023
    for party in parties:
        party.join(20)
    assert sorted(numbers) == [0, 1, 2]
