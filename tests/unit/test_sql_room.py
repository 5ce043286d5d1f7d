"""What a call is worth to who waits for a row, without a database."""

from __future__ import annotations

import pytest

from holdfast.backends.sql.room import Place, Room, Ticket
from holdfast.ports.thread import ThreadPort
from holdfast.types import Claim

pytestmark = pytest.mark.req("law 1", "R9")


def claim(owner: str = "me") -> Claim:
    return Claim("x", owner)


def ticket(told: float) -> Ticket:
    return Ticket(claim(), Place(7, told + 60, told), ThreadPort())


def test_a_call_is_dated_from_when_it_was_surely_in_line() -> None:
    one = ticket(100.0)
    one.call("41 2000000 me")
    grant = one.grant(100.5)
    assert grant is not None
    assert grant.fence == 41
    assert 101.9 < grant.until < 102.0
    assert grant.confirm_by is not None
    assert 100.5 < grant.confirm_by < 101.1
    one.told = 110.0  # by a heartbeat
    one.call("42 2000000 me")
    grant = one.grant(110.5)
    assert grant is not None
    assert 111.9 < grant.until < 112.0


@pytest.mark.parametrize("now", [101.0, 103.0, 200.0])
def test_a_call_that_may_be_old_must_be_asked_for(now: float) -> None:
    """The process may have been stopped since, and somebody else may hold it."""
    one = ticket(100.0)
    one.call("41 2000000 me")
    assert one.called
    assert one.grant(now) is None


def test_the_window_is_that_of_who_called() -> None:
    one = ticket(100.0)
    one.call("41 500000 me")
    grant = one.grant(100.1)
    assert grant is not None
    assert grant.until < 100.5


def test_a_call_gives_once() -> None:
    one = ticket(100.0)
    one.call("41 2000000 me")
    assert one.grant(100.1) is not None
    assert one.grant(100.1) is None
    one.call()
    assert one.grant(100.1) is None


@pytest.mark.parametrize("given", ["", "41 2000000 you", "41 2000000 ", "41"])
def test_a_call_to_find_out_or_for_another_gives_nothing(given: str) -> None:
    """A server that took over may give the same place again."""
    one = ticket(100.0)
    one.call(given)
    assert one.called
    assert one.event.is_set()
    assert one.grant(100.1) is None


def test_permits_have_no_token() -> None:
    one = ticket(100.0)
    one.call("0 2000000 me")
    grant = one.grant(100.1)
    assert grant is not None
    assert grant.fence is None


def test_a_call_may_come_before_its_place_is_known() -> None:
    port = ThreadPort()

    async def nobody(deadline: float) -> object:
        raise AssertionError

    room = Room(port, 1.0, 1.0, nobody)  # type: ignore[arg-type]
    room.heard("7 41 2000000 me")
    room.heard("8")
    room.closed = True  # nobody attends
    told = port.now()
    first = room.enter(claim(), Place(7, told + 60, told))
    grant = first.grant(told)
    assert grant is not None
    assert grant.fence == 41
    second = room.enter(claim("you"), Place(8, told + 60, told))
    assert second.called
    assert second.grant(told) is None
    assert not room.enter(claim(), Place(7, told + 60, told)).called
