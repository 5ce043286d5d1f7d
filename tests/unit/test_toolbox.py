"""Once, election, latch, barrier: the rules that a few lines decide, in front of a store whose
answers are lost at will. What every store must do with them is in the conformance suite."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import until

import holdfast
from holdfast.core.hold import Hold
from holdfast.ports.thread import drive
from holdfast.toolbox import barrier, latch
from holdfast.toolbox.barrier import State
from holdfast.types import Cell, CellConflict, Unknown

numbers = itertools.count()
Answer = Cell | CellConflict | Unknown


@pytest.fixture
def url() -> str:
    return f"memory://toolbox{next(numbers)}"


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


@pytest.fixture
def other(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


class Faulty:
    """In front of a client's cells: what it wrote, and what becomes of the answers."""

    def __init__(self, locks: holdfast.Locks) -> None:
        backend: Any = locks._engine().backend
        self._write = backend.cell_write
        self.written: list[dict[str, Any]] = []
        self.losing = 0  # so many answers, of requests that are applied
        self.refusing = 0  # so many requests, of which nobody hears
        self.then: Callable[[], None] = lambda: None  # before the caller learns of a loss
        backend.cell_write = self.write

    async def write(self, name: str, value: bytes | None, **how: Any) -> Answer:
        if value is not None:
            self.written.append({"name": name, "value": value, **how})
        if self.refusing:
            self.refusing -= 1
            self.then()
            return Unknown("refused")
        answer: Answer = await self._write(name, value, **how)
        if self.losing:
            self.losing -= 1
            self.then()
            return Unknown("lost")
        return answer


# -- latch -----------------------------------------------------------------------------------------


@pytest.mark.req("B5", "law 2")
@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_lost_count_is_found_behind_those_of_others(
    locks: holdfast.Locks, other: holdfast.Locks, others: int
) -> None:
    faulty = Faulty(locks)
    faulty.losing = 1
    beside = other.latch("x", 100)

    def count() -> None:
        for _ in range(others):
            beside.count_down()

    faulty.then = count
    locks.latch("x", 100).count_down()
    assert beside.count() == 100 - 1 - others


@pytest.mark.req("B5", "law 2")
def test_a_count_that_never_arrived_is_sent_again(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    faulty = Faulty(locks)
    faulty.refusing = 2
    beside = other.latch("x", 100)
    faulty.then = lambda: (beside.count_down(), None)[1]
    locks.latch("x", 100).count_down()
    assert beside.count() == 100 - 1 - 2


@pytest.mark.req("B5", "law 2")
def test_nobody_remembers_a_count_so_it_is_not_repeated(
    locks: holdfast.Locks, other: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latch, "MEMORY", 3)
    faulty = Faulty(locks)
    faulty.losing = 1
    beside = other.latch("x", 100)

    def count() -> None:
        for _ in range(4):
            beside.count_down()

    faulty.then = count
    with pytest.raises(holdfast.Unavailable, match="not known"):
        locks.latch("x", 100).count_down()
    assert beside.count() == 100 - 1 - 4
    assert len(faulty.written) == 1


# -- optimistic ------------------------------------------------------------------------------------


@pytest.mark.req("B5", "law 2")
def test_a_commit_without_an_answer_under_another_is_not_said_to_have_failed(
    locks: holdfast.Locks, other: holdfast.Locks
) -> None:
    faulty = Faulty(locks)
    mine, theirs = locks.optimistic("x"), other.optimistic("x")
    faulty.losing = 1
    assert mine.commit(mine.version()) == theirs.version()
    faulty.losing = 1
    faulty.then = lambda: (theirs.commit(theirs.version()), None)[1]
    with pytest.raises(holdfast.Unavailable, match="not known"):
        mine.commit(mine.version())


# -- barrier ---------------------------------------------------------------------------------------


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
def test_who_is_slow_to_look_still_learns_how_its_generation_ended() -> None:
    with holdfast.connect(f"memory://toolbox{next(numbers)}") as locks:
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
        locks.barrier("x", 3, ttl=0.3).wait(timeout=30)


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


# -- once ------------------------------------------------------------------------------------------


@pytest.mark.req("R70", "B5", "law 1")
def test_the_time_of_a_value_counts_from_before_it_was_computed(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(locks)
    port: Any = locks._engine().port
    now = port.now
    late = 0.0
    port.now = lambda: now() + late

    def compute() -> str:
        nonlocal late
        late += 20.0
        return "slow"

    token = locks.once("x", 100, compute, ahead=30, lease=1000)
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
    port: Any = locks._engine().port
    now = port.now
    late = 0.0
    port.now = lambda: now() + late

    def compute() -> str:
        nonlocal late
        late += 20.0
        return "too slow"

    assert locks.once("x", 10, compute, lease=1000).get() == "too slow"
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
            do()
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


# -- election --------------------------------------------------------------------------------------


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
