"""A waiting room and its attendant, without a store: nobody who comes at a bad moment is
overlooked, and nobody is left behind when the attendant fails or goes.

Over 400 lines: a list of cases, each read by itself, that share a room with nobody in it.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import PATIENCE, until

from holdfast.backends import attendance
from holdfast.core.port import Event
from holdfast.errors import Unavailable
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Cell

pytestmark = pytest.mark.req("law 6", "R9")

NEVER = 600.0
"""The heartbeat: whatever happens before, happens because somebody was woken."""


class Ticket:
    def __init__(self, event: Event) -> None:
        self.event = event
        self.said: list[str] = []

    def call(self, said: str) -> None:
        self.said.append(said)
        self.event.set()


class Ear:
    def __init__(self) -> None:
        self.woken = threading.Event()
        self.closed = False

    def wake(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.closed = True


class Attendant(attendance.Attendant[attendance.Room[str, Ticket, str], Ear]):
    """Each of its steps may be looked at, or stopped, by a test."""

    trouble = (ConnectionError,)

    def __init__(self, room: attendance.Room[str, Ticket, str], office: Office) -> None:
        super().__init__(room, "holdfast-test")
        self._office = office

    def hears(self, what: str) -> bool:
        return False

    async def _open(self, deadline: float) -> Ear:
        self._office.step("open")
        return Ear()

    async def _begun(self, ear: Ear) -> None:
        self._office.ears.append(ear)

    async def _serve(self, ear: Ear) -> None:
        self._office.step("serve")

    def _due(self) -> float:
        due = self._office.due
        self._office.step("due")
        return due

    async def _listen(self, ear: Ear, until: float) -> None:
        self._office.step("listen")
        ear.woken.wait(until - self._port.now())
        ear.woken.clear()


class Office(attendance.Room[str, Ticket, str]):
    def __init__(self) -> None:
        super().__init__(ThreadPort(), NEVER, lambda room: self._made(Attendant(room, self)))
        self.hired: list[Attendant] = []
        self.ears: list[Ear] = []
        self.steps: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}  # what a test does at a step, once
        self.due = math.inf

    def _made(self, attendant: Attendant) -> Attendant:
        self.hired.append(attendant)
        return attendant

    def step(self, name: str) -> None:
        act = self.at.pop(name, None)
        if act is not None:
            act()
        self.steps.append(name)

    def enter(self, key: str, look_at: float = math.inf) -> Ticket:
        ticket = Ticket(self.port.event())
        with self.port.mutex():
            self._tickets[key] = ticket
        self.due = min(self.due, look_at)
        self._call_early(key, ticket)
        self._entered(ticket, look_at)
        return ticket

    def leave(self, key: str) -> None:
        self._tickets.pop(key)

    def call(self, key: str, said: str) -> None:
        self._call(key, said)

    def asleep(self) -> None:
        until(lambda: self.steps and self.steps[-1] == "listen", "it listens")


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture(autouse=True)
def _closed(office: Office) -> object:
    yield
    office.close()
    for attendant in office.hired:  # one that was called off may have begun, and ends by itself
        assert drive(attendant.join(office.port.now() + PATIENCE)) is None
        assert attendant.over
    assert all(ear.closed for ear in office.ears)


@pytest.mark.parametrize("step", ["open", "serve", "due", "listen"])
def test_who_begins_to_watch_at_any_moment_is_looked_after_at_once(
    office: Office, step: str
) -> None:
    """While it asked something else, it was not woken, and slept until the heartbeat."""
    served: list[int] = []

    def watch() -> None:
        served.append(len(office.steps) + 1)  # after this step
        office.watch("x", print)

    office.at[step] = watch
    office.enter("a")
    until(lambda: served and "serve" in office.steps[served[0] :], "it is served again")


@pytest.mark.parametrize("step", ["open", "serve", "due", "listen"])
def test_who_enters_at_any_moment_is_looked_after_in_time(office: Office, step: str) -> None:
    """Between looking for the next moment and noting it, it was overlooked."""
    entered: list[int] = []

    def enter() -> None:
        entered.append(len(office.steps))
        office.enter("b", office.port.now() + 0.05)

    office.at[step] = enter
    office.enter("a")
    until(lambda: entered and office.steps[entered[0] :].count("listen") >= 2, "it looks in time")


def test_one_attends_and_goes_when_nobody_is_left(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendance, "LINGER", 0.0)
    office.enter("a")
    office.enter("b")
    office.asleep()
    office.leave("a")
    office.hired[0].wake()
    until(lambda: office.steps.count("listen") == 2, "it stays")
    office.leave("b")
    office.hired[0].wake()
    until(lambda: office.steps.count("listen") == 3, "it looks once more")
    office.hired[0].wake()
    until(lambda: office.hired[0].over, "it goes")
    office.enter("c")
    assert len(office.hired) == 2


@pytest.mark.parametrize("error", [ConnectionError("gone"), ZeroDivisionError("a bug")])
@pytest.mark.parametrize("step", ["open", "serve", "due", "listen"])
def test_when_nothing_is_heard_everybody_asks_and_another_ear_is_opened(
    office: Office, step: str, error: Exception
) -> None:
    def fail() -> None:
        raise error

    office.at[step] = fail
    told = threading.Event()
    office.watched["x"] = {told.set}  # before there is an attendant that could fail
    ticket = office.enter("a")
    assert told.wait(PATIENCE)
    assert drive(ticket.event.wait(office.port.now() + PATIENCE))
    office.asleep()
    assert len(office.ears) == (1 if step == "open" else 2)
    assert [ear.closed for ear in office.ears[:-1]] == [True] * (len(office.ears) - 1)


class Struck:
    """A task at whose start Ctrl-C strikes: before its thread begins, or after."""

    def __init__(self, task: Any, when: str, strike: Callable[[], None]) -> None:
        self._task = task
        self._when = when
        self._strike = strike

    def start(self) -> None:
        if self._when == "before":
            self._strike()
        self._task.start()
        self._strike()

    @property
    def alive(self) -> bool:
        return bool(self._task.alive)

    async def join(self, deadline: float) -> bool:
        return bool(await self._task.join(deadline))


def strike_first_start(office: Office, when: str, strike: Callable[[], None]) -> None:
    made = office._made

    def struck(attendant: Attendant) -> Attendant:
        made(attendant)
        if len(office.hired) == 1:
            attendant._task = Struck(attendant._task, when, strike)
        return attendant

    office._made = struck  # type: ignore[method-assign]


@pytest.mark.parametrize("when", ["before", "after"])
def test_who_relied_on_an_attendant_that_never_began_is_told(office: Office, when: str) -> None:
    """Somebody entered while another thread hired; that one was interrupted."""
    tickets: list[Ticket] = []

    def strike() -> None:
        ticket = Ticket(office.port.event())
        office._tickets["b"] = ticket
        tickets.append(ticket)
        raise KeyboardInterrupt

    strike_first_start(office, when, strike)
    with pytest.raises(KeyboardInterrupt):
        office.watch("x", print)
    office.unwatch("x", print)
    assert tickets[0].event.is_set()
    office.enter("c")
    assert len(office.hired) == 2


def test_an_attendant_whose_start_was_interrupted_ends(office: Office) -> None:
    """Its thread had begun, and slept until the heartbeat; it outlived its room."""

    def strike() -> None:
        office.asleep()
        raise KeyboardInterrupt

    strike_first_start(office, "after", strike)
    with pytest.raises(KeyboardInterrupt):
        office.enter("a")
    assert drive(office.hired[0]._task.join(office.port.now() + PATIENCE))
    assert office.ears[0].closed
    office.enter("b")


def test_who_waits_is_told_when_the_attendants_task_is_cancelled(office: Office) -> None:
    def cancel() -> None:
        raise asyncio.CancelledError

    attendant = office._attendant = office._made(Attendant(office, office))
    attendant.over = False
    ticket = office.enter("a")
    ticket.event.clear()
    office.at["serve"] = cancel
    with pytest.raises(asyncio.CancelledError):
        drive(attendant._run())
    assert ticket.event.is_set()
    office.enter("b")
    assert len(office.hired) == 2


def test_a_call_may_come_before_its_waiter_twice_or_for_nobody(office: Office) -> None:
    for number in range(2 * attendance.EARLY):
        office.call(f"nobody {number}", "come")
    office.call("a", "come")
    ticket = office.enter("a")
    assert ticket.said == ["come"]
    assert len(office._early) <= attendance.EARLY
    office.call("a", "again")
    assert ticket.said == ["come", "again"]


def test_a_cell_is_read_again_when_the_store_was_silent(office: Office) -> None:
    """PostgreSQL and MySQL raised at the first silence, however long there was to wait."""
    answers: list[Cell | None] = [None, Cell(b"new", 2)]
    asked: list[float] = []

    async def read(limit: float) -> tuple[Cell | None, float]:
        asked.append(limit)
        if len(asked) == 2:
            raise Unavailable("silent")
        threading.Timer(0.01, office.tell_watchers, ("x",)).start()
        return answers.pop(0), math.inf

    found = drive(office.changed("x", 0, read, office.port.now() + PATIENCE))
    assert found == Cell(b"new", 2)
    assert len(asked) == 3
    assert not office.watched


@pytest.mark.parametrize("left", [0.0, 0.05])
def test_a_silent_store_is_not_asked_beyond_the_deadline(office: Office, left: float) -> None:
    limits: list[float] = []

    async def read(limit: float) -> tuple[Cell | None, float]:
        limits.append(limit)
        drive(office.port.sleep(limit - office.port.now()))
        raise Unavailable("silent")

    deadline = office.port.now() + left
    with pytest.raises(Unavailable):
        drive(office.changed("x", 0, read, deadline))
    assert limits[-1] <= deadline + attendance.HASTE + 0.1


def test_a_store_that_is_only_slow_is_waited_for(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look had the same second, however long it would have taken."""
    monkeypatch.setattr(attendance, "PATIENCE", 0.01)

    async def read(limit: float) -> tuple[Cell | None, float]:
        if limit - office.port.now() < 0.1:
            raise Unavailable("slow")
        return Cell(b"x", 2), math.inf

    limit = office.port.now() + PATIENCE
    assert drive(office.changed("x", 0, read, limit, 0.01)) == Cell(b"x", 2)


def test_who_waits_for_a_cell_has_another_attendant_when_the_first_was_interrupted(
    office: Office,
) -> None:
    """It was told, looked, and watched on with nobody who heard."""
    asked: list[float] = []

    async def read(limit: float) -> tuple[Cell | None, float]:
        asked.append(limit)
        if len(asked) == 1:
            office.asleep()
            office.hired[0].over = True  # as when Ctrl-C strikes at its start
            office.hired[0].wake()
            drive(office.hired[0].join(office.port.now() + PATIENCE))
        if len(asked) == 2:
            threading.Timer(0.05, office.tell_watchers, ("x",)).start()
        return (None if len(asked) < 3 else Cell(b"new", 2)), math.inf

    assert drive(office.changed("x", 0, read, office.port.now() + PATIENCE)) == Cell(b"new", 2)
    assert len(office.hired) == 2


def test_patience_has_an_end(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage of an hour, a dead connection would have been waited for another."""
    monkeypatch.setattr(attendance, "PATIENCE", 0.0)
    given: list[float] = []

    async def read(limit: float) -> tuple[Cell | None, float]:
        given.append(limit - office.port.now())
        if len(given) < 20:
            raise Unavailable("away")
        return Cell(b"new", 2), math.inf

    drive(office.changed("x", 0, read, math.inf, 1.0))
    assert max(given) <= attendance.SLOWEST


@pytest.mark.req("law 4")
def test_who_waits_without_an_attendant_asks_for_itself_and_not_all_the_time(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread was to be had: `RuntimeError`, out of the middle of an acquire."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    now = office.port.now
    first = office.enter("first")
    assert first.event.is_set()  # it asks once, and then
    first.event.clear()
    second = office.enter("second")
    assert not first.event.is_set()
    assert not second.event.is_set()
    assert len(office.hired) == 1
    assert office.heard_until(math.inf) - now() <= attendance.ALONE
    monkeypatch.setattr(threading.Thread, "start", start)
    office._alone_until = now()
    third = office.enter("third")  # there is one now
    assert office.heard_until(math.inf) == math.inf
    office.asleep()
    assert not third.event.is_set()
