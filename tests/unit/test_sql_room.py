"""What a call is worth to who waits for a row, without a database."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence, Set
from typing import Any, cast

import pytest
from tests.waiting import PATIENCE, until

from holdfast.backends.sql.attendant import SOONEST, Attendant
from holdfast.backends.sql.room import Place, Room, Ticket
from holdfast.backends.sql.row import RowBackend
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Busy, Claim

pytestmark = pytest.mark.req("law 1", "R9")

THEN = 1_700_000_000_000_000
"""The database's clock when the waiter asked, 100 s here."""
WINDOW = 2_000_000


def claim(owner: str = "me") -> Claim:
    return Claim("x", owner)


def place(number: int, told: float) -> Place:
    return Place(number, told + 60, told, THEN)


def ticket() -> Ticket:
    return Ticket(claim(), place(7, 100.0), ThreadPort())


def call(after: float, *, token: int = 41, span: int = WINDOW, owner: str = "me") -> str:
    return f"{token} {THEN + round(after * 1e6)} {span} {owner}"


def test_a_call_is_dated_by_the_databases_clock() -> None:
    one = ticket()
    one.call(call(0.3))
    grant = one.grant(100.5)
    assert grant is not None
    assert grant.fence == 41
    assert 102.2 < grant.until < 102.3
    assert grant.confirm_by is not None
    assert 100.5 < grant.confirm_by < 101.1
    one.told = 110.0, THEN + 10_000_000  # it has looked
    one.call(call(10.1))
    grant = one.grant(110.5)
    assert grant is not None
    assert 112.0 < grant.until < 112.1


def test_who_let_it_in_may_have_begun_before_it_stood_in_line() -> None:
    """It waited for the row: what it gives is that much shorter."""
    one = ticket()
    one.call(call(-0.5))
    grant = one.grant(100.05)
    assert grant is not None
    assert grant.until < 101.5


@pytest.mark.parametrize("now", [101.0, 103.0, 200.0])
def test_a_call_that_may_be_old_must_be_asked_for(now: float) -> None:
    """The process may have been stopped since, and somebody else may hold it."""
    one = ticket()
    one.call(call(0.1))
    assert one.called
    assert one.grant(now) is None


def test_an_exchange_of_long_ago_dates_nothing() -> None:
    one = ticket()
    one.call(call(60.0))
    assert one.grant(160.1) is None


def test_the_window_is_that_of_who_called() -> None:
    one = ticket()
    one.call(call(0.0, span=500_000))
    grant = one.grant(100.1)
    assert grant is not None
    assert grant.until < 100.5


def test_a_call_gives_once() -> None:
    one = ticket()
    one.call(call(0.0))
    assert one.grant(100.1) is not None
    assert one.grant(100.1) is None
    one.call()
    assert one.grant(100.1) is None


@pytest.mark.parametrize("given", ["", call(0.0, owner="you"), call(0.0, owner=""), "41"])
def test_a_call_to_find_out_or_for_another_gives_nothing(given: str) -> None:
    """A server that took over may give the same place again."""
    one = ticket()
    one.call(given)
    assert one.called
    assert one.event.is_set()
    assert one.grant(100.1) is None


def test_permits_have_no_token() -> None:
    one = ticket()
    one.call(call(0.0, token=0))
    grant = one.grant(100.1)
    assert grant is not None
    assert grant.fence is None


def test_a_call_may_come_before_its_place_is_known() -> None:
    def nobody(room: Room) -> Any:
        raise AssertionError

    port = ThreadPort()
    room = Room(port, 1.0, nobody)
    room.heard(f"7 {call(0.0)}")
    room.heard("8")
    room.closed = True  # nobody attends
    told = port.now()
    first = room.enter(claim(), place(7, told))
    grant = first.grant(told)
    assert grant is not None
    assert grant.fence == 41
    second = room.enter(claim("you"), place(8, told))
    assert second.called
    assert second.grant(told) is None
    assert not room.enter(claim(), place(7, told)).called


class Silent:
    """An attendant that only remembers how often it was woken; an ear where all are in line."""

    calls = False

    def __init__(self) -> None:
        self.over = False
        self.looks_at = math.inf
        self.woken = 0

    def start(self) -> None: ...

    def wake(self) -> None:
        self.woken += 1

    def hears(self, what: str) -> bool:
        return False

    async def join(self, deadline: float) -> None: ...

    async def still(self, owners: Sequence[bytes], deadline: float) -> set[bytes]:
        return set(owners)


@pytest.mark.req("law 3")
def test_who_was_interrupted_while_it_entered_or_left_hides_nobody() -> None:
    """Its ticket stayed for ever, as the first of its line: nobody else was told to look."""
    room = Room(ThreadPort(), 1.0, lambda room: Silent())
    room.enter(claim(), place(7, 0.0))
    room.enter(claim("you"), place(8, 0.0))
    room.call_off("me")  # the keeper withdraws it
    assert [ticket.number for ticket in room.firsts()] == [8]


def test_who_has_looked_and_knows_of_an_earlier_moment_wakes_the_attendant() -> None:
    silent = Silent()
    room = Room(ThreadPort(), 60.0, lambda room: silent)
    told = room.port.now()
    one = room.enter(claim(), place(7, told))
    silent.woken, silent.looks_at = 0, told + 10
    one.look_at = told + 20
    room.looks(one)
    assert silent.woken == 0
    one.look_at = told + 5
    room.looks(one)
    assert silent.woken == 1


class Meanwhile(set[int]):
    """While the attendant compares who is first with whom it knew, a lock is handed over."""

    room: Room

    def __rsub__(self, other: Set[int]) -> set[int]:
        self.room.passed_on("x")
        return set(other) - set(self)


def test_what_is_passed_on_while_it_looks_makes_it_ask_soon() -> None:
    room = Room(ThreadPort(), 60.0, lambda room: Silent())
    room.asks = True
    room.enter(claim(), place(7, room.port.now()))
    attendant: Any = Attendant(room, 50.0, None)  # type: ignore[arg-type]
    ear = Silent()
    drive(attendant._ask(ear))
    attendant._ask_at, attendant._pause = room.port.now() + 50, 50.0
    attendant._known = Meanwhile(attendant._known)
    attendant._known.room = room
    drive(attendant._ask(ear))
    drive(attendant._ask(ear))
    assert attendant._ask_at <= room.port.now() + SOONEST


@pytest.mark.req("law 4", "R11")
def test_who_was_called_off_and_is_still_in_line_does_not_wait_on() -> None:
    """The withdrawal comes after it was woken: it saw itself in line, and went to sleep outside of
    the room, where nobody calls."""
    room = Room(ThreadPort(), 60.0, lambda room: Silent())

    class Backend:
        _port, _room, _bells = room.port, room, None

        async def _find_out(self, claim: Claim, ticket: Ticket, limit: float) -> bool:
            return True

    busy = Busy(token=place(7, room.port.now()))
    waiting = RowBackend.wait(cast(Any, Backend()), claim(), busy, math.inf)
    thread = threading.Thread(target=lambda: drive(waiting), daemon=True)
    thread.start()
    until(room.tickets, "it waits")
    room.call_off("me")
    thread.join(PATIENCE)
    assert not thread.is_alive()
