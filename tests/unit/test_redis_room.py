"""The waiting room of the redis backend, without a server: what a hostile review found, and why a
call counts or does not."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import PATIENCE

from holdfast.backends.redis import transport
from holdfast.backends.redis.calls import Called, Place, Ticket
from holdfast.backends.redis.listener import Listener
from holdfast.backends.redis.sockets import CHUNK, Wire
from holdfast.backends.redis.threads import ThreadEar
from holdfast.backends.redis.transport import Subscription
from holdfast.backends.redis.waiting import DEAF, Room
from holdfast.backends.redis.wire import NoAnswer, ReplyError, pack
from holdfast.core.lease import DRIFT, STALE
from holdfast.ports.thread import ThreadPort, drive
from holdfast.types import Claim, Unknown

HERE, ELSEWHERE = "run-1", "run-2"


class Attendant:
    """A listener that only remembers what became of it."""

    def __init__(self, room: Room, fails: bool = False) -> None:
        self.over = True
        self.looks_at = -math.inf
        self.started = 0
        self.woken = 0
        self._fails = fails

    def start(self) -> None:
        if self._fails:
            raise KeyboardInterrupt
        self.over = False
        self.started += 1

    def wake(self) -> None:
        self.woken += 1

    def hears(self, channel: str) -> bool:
        return False

    async def join(self, deadline: float) -> None:
        pass


class Office:
    """A room, and whom it has hired."""

    def __init__(self) -> None:
        self.hired: list[Attendant] = []
        self.fails = False
        self.room = Room(ThreadPort(), "channel", 1.0, self._hire)

    def _hire(self, room: Room) -> Attendant:
        attendant = Attendant(room, self.fails)
        self.hired.append(attendant)
        return attendant


def place(number: int = 1, sent: float = 0.0, hearing: str = "1") -> Place:
    return Place(number, float("inf"), sent, HERE, hearing)


def call(owner: str, fence: int, clock: int, span: float) -> bytes:
    return f"{owner} {fence} {clock} {round(span * 1e6)}".encode()


def test_the_first_waiter_hires_a_listener_and_the_second_does_not() -> None:
    office = Office()
    office.room.enter(Claim("x", "a"), place())
    office.room.enter(Claim("x", "b"), place(2))
    assert [a.started for a in office.hired] == [1]


def test_an_interrupt_while_the_listener_is_started_leaves_no_listener_that_is_none() -> None:
    office = Office()
    office.fails = True
    claim = Claim("x", "a")
    with pytest.raises(KeyboardInterrupt):
        office.room.enter(claim, place())
    office.room.leave(claim)
    office.fails = False
    office.room.enter(Claim("x", "b"), place())
    assert office.hired[-1].started == 1


def test_a_listener_goes_only_when_nobody_waits_and_then_another_is_hired() -> None:
    office = Office()
    claim = Claim("x", "a")
    office.room.enter(claim, place())
    first = office.hired[0]
    assert not office.room.dismiss(first)
    office.room.leave(claim)
    assert office.room.dismiss(first)
    office.room.enter(Claim("x", "b"), place())
    assert [a.started for a in office.hired] == [1, 1]


def test_who_leaves_takes_only_its_own_place() -> None:
    office = Office()
    a, b = Claim("x", "a"), Claim("x", "b")
    office.room.enter(a, place(1))
    office.room.enter(b, place(2))
    office.room.leave(a)
    line = office.room.lines["x"]
    first = line.first()
    assert first is not None
    assert first.claim is b
    office.room.leave(b)
    assert not office.room.lines
    office.room.leave(b)  # again: nothing


def test_who_enters_a_room_that_was_closed_is_woken() -> None:
    office = Office()
    office.room.close()
    assert drive(office.room.enter(Claim("x", "a"), place()).event.wait(0))


def test_a_call_that_comes_before_the_waiter_is_kept() -> None:
    office = Office()
    room = office.room
    now = room.port.now()
    room.anchors.set(HERE, now, 1_000_000)
    room.heard(b"channel", call("a", 7, 1_000_000, 2.0), HERE)
    ticket = room.enter(Claim("x", "a"), place(sent=now))
    assert ticket.event.is_set()
    grant = room.grant(ticket)
    assert grant is not None
    assert grant.fence == 7


def test_a_call_that_another_server_passes_on_does_not_count() -> None:
    """A replica repeats what its master called out, also when the master took it back because
    nobody heard it there."""
    office = Office()
    room = office.room
    now = room.port.now()
    for server in (HERE, ELSEWHERE):
        room.anchors.set(server, now, 1_000_000)
    ticket = room.enter(Claim("x", "a"), place(sent=now))
    room.heard(b"channel", call("a", 7, 1_000_000, 2.0), ELSEWHERE)
    assert ticket.event.is_set()  # it asks
    assert room.grant(ticket) is None


@pytest.mark.parametrize("shift", [-1_000_000, 0, 1_000_000])
def test_a_call_is_dated_by_the_servers_clock_and_not_by_its_arrival(shift: int) -> None:
    office = Office()
    room = office.room
    now = room.port.now()
    sent = now - 1.5  # what follows was called at sent + shift, and we were stopped since
    room.anchors.set(HERE, sent, 5_000_000)
    until = room.anchors.until(Called(1, 5_000_000 + shift, 2_000_000, HERE), now)
    assert until is not None
    assert until == pytest.approx(
        min(sent + shift / 1e6 + 2 - DRIFT * (abs(shift) / 1e6 + 2), now + 2)
    )


def test_an_anchor_that_is_too_old_or_of_nobody_dates_nothing() -> None:
    office = Office()
    anchors = office.room.anchors
    now = office.room.port.now()
    called = Called(1, 1_000_000, 2_000_000, HERE)
    assert anchors.until(called, now) is None
    anchors.set(HERE, now - STALE - 1, 1_000_000)
    assert anchors.until(called, now) is None
    anchors.set("", now, 1_000_000)
    assert anchors.until(called._replace(run_id=""), now) is None


def test_who_asked_before_we_listened_is_looked_for_at_once() -> None:
    office = Office()
    office.room.enter(Claim("x", "a"), place(sent=100.0, hearing=DEAF))
    assert office.room.lines["x"].beat_at == 100.0
    office.room.enter(Claim("y", "b"), place(sent=100.0))
    assert office.room.lines["y"].beat_at == 101.0


class Peeping(dict[str, Any]):
    """While somebody looks for a ticket here, another thread enters."""

    def __init__(self, enter: Callable[[], None]) -> None:
        super().__init__()
        self._thread = threading.Thread(target=enter)

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        if self._thread.ident is None:
            self._thread.start()
            self._thread.join(0.2)  # it may have to wait until who looks has done
        return found

    def join(self) -> None:
        self._thread.join(PATIENCE)


@pytest.mark.req("law 4", "R11")
def test_who_enters_while_its_claim_is_called_off_does_not_wait_for_ever() -> None:
    """As the others of a line that stands for any stripe, when one of them is granted."""
    room = Office().room
    entered: list[Ticket] = []
    room._tickets = peeping = Peeping(lambda: entered.append(room.enter(Claim("x", "a"), place())))
    room.call_off(Claim("x", "a"))
    peeping.join()
    assert entered[0].event.is_set() or room.tickets() == entered


def test_an_answer_for_who_was_here_before_does_not_take_the_place_of_who_is_here_again() -> None:
    room = Office().room
    before = room.enter(Claim("x", "a"), place())
    (line,) = room.lines.values()
    again = room.enter(Claim("x", "a"), place(2))
    room.answered(line, before, None)
    assert line.first() is again


@pytest.mark.parametrize("said", [b"", b"hello", b"a b c d", b"a 1 2", b"a 1 2 3 4", b"\xff 1 2 3"])
def test_a_message_that_is_no_call_is_nobodys(said: bytes) -> None:
    """It ended the subscription, and everybody asked for themselves."""
    room = Office().room
    ticket = room.enter(Claim("x", "a"), place())
    room.heard(b"channel", said, HERE)
    assert ticket.called is None
    assert not ticket.event.is_set()


@pytest.mark.req("law 6")
def test_who_listens_to_much_comes_to_its_heartbeats() -> None:
    """As long as there was something to hear, nothing else was done."""
    here, there = socket.socketpair()
    heard: list[bytes] = []
    ear = ThreadEar(Wire(here), lambda channel, payload: heard.append(payload))
    try:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * CHUNK)
        there.setblocking(False)
        said = pack("message", "channel", "x" * 8000)
        count = there.send(said * (2 * CHUNK // len(said))) // len(said)
        assert count * len(said) > 1.5 * CHUNK
        drive(ear.listen(0.0))
        assert 0 < len(heard) < count
    finally:
        ear.close()
        there.close()


@pytest.mark.req("R9", "R2")
@pytest.mark.parametrize("seen", [math.inf, Unknown("silence")])
def test_who_enters_while_its_line_is_asked_about_is_asked_about_too(seen: Any) -> None:
    """What was found out of the other set the line's next look, a heartbeat later: a call that was
    made before this one was heard was missed, and the lock stood still for a second."""

    async def look(claims: Any, hearing: str, deadline: float) -> list[Any]:
        asked.append([claim.owner for claim in claims])
        if len(asked) > 1:
            return [math.inf]
        room.enter(Claim("x", "b"), place(1, sent=now, hearing=DEAF))
        return [seen]

    async def no_ear(hear: Any, deadline: float) -> Any:
        raise AssertionError("nobody listens here")

    asked: list[list[str]] = []
    room = Office().room
    now = room.port.now()
    listener = Listener(room, True, look, no_ear)
    room.enter(Claim("x", "a"), place(2, sent=now - 5))
    drive(listener._beat())
    assert asked == [["a"], ["b"]]


@pytest.mark.req("R7", "law 5")
def test_a_subscription_that_is_silent_is_asked_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line that was cut without a word looks quiet."""
    moment = 100.0
    monkeypatch.setattr(transport, "now", lambda: moment)
    heard: list[tuple[bytes, bytes]] = []
    one = Subscription(lambda *message: heard.append(message))
    moment += 60
    assert not one.is_quiet()  # it listens to nothing yet
    one.hear([b"subscribe", b"here", 1])
    one.hear([b"message", b"here", b"you"])
    assert (one.confirmed, heard) == (1, [(b"here", b"you")])
    moment += 2.9
    assert not one.is_quiet()
    moment += 0.2
    assert one.is_quiet()
    moment += 1.9
    assert not one.is_quiet()  # it was asked, and has time to answer
    one.hear(b"PONG")
    moment += 3.1
    assert one.is_quiet()
    one.hear([b"pong", b""])  # RESP2
    moment += 3.1
    assert one.is_quiet()
    moment += 2.1
    with pytest.raises(NoAnswer, match="silent"):
        one.is_quiet()
    with pytest.raises(NoAnswer, match="refused: NOPERM"):
        one.hear(ReplyError("NOPERM"))
