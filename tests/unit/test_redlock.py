"""redlock://: how votes are counted, without any node."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from holdfast.backends.redis.wire import NoAnswer, NotSent, ReplyError
from holdfast.backends.redlock.ballot import Batch, Commit, Tally, Votes, quorum_of
from holdfast.backends.redlock.letters import Letter, Writer
from holdfast.backends.redlock.nodes import Debt, Login, Member, places_to_ask
from holdfast.backends.redlock.overview import ask_everybody
from holdfast.backends.redlock.presence import RedlockRoll, appear
from holdfast.errors import Misconfigured, Unavailable
from holdfast.ports.clock import now
from holdfast.ports.thread import ThreadPort, drive

YES, NO = [1, 0, 100], [0, 5000, b"mark", b"{}"]


def votes(*answers: Any, nodes: int = 5) -> Votes:
    """Places in quarantine are those behind the fifth."""
    ballot = Votes(nodes, lambda place: place < 5)
    for place, answer in enumerate(answers):
        if isinstance(answer, Exception):
            ballot.fail(place, answer)
        else:
            ballot.hear(place, [answer])
    return ballot


@pytest.mark.req("R34")
def test_a_quorum_is_more_than_half_of_those_that_were_configured() -> None:
    assert [quorum_of(nodes) for nodes in (3, 4, 5, 7)] == [2, 3, 3, 4]
    away = NotSent("")
    assert not votes(YES, YES, away, away, away).won
    assert votes(YES, YES, YES, away, away).won


@pytest.mark.req("R34")
def test_it_is_decided_as_soon_as_no_answer_can_change_it() -> None:
    assert not votes(YES, YES).decided
    assert votes(YES, YES, YES).decided
    assert not votes(NO, NO).decided
    assert votes(NO, NO, NO).decided
    silent = NoAnswer("")
    assert not votes(silent, silent, silent).decided  # it cannot be won, but is it busy?
    assert not votes(silent, silent, silent, NO).decided
    assert votes(silent, silent, silent, NO, NO).decided


@pytest.mark.req("R36")
def test_who_is_quarantined_is_not_counted() -> None:
    ballot = votes(YES, YES, *[NotSent("")] * 3, YES, YES, nodes=7)
    assert (ballot.yes, ballot.shy, ballot.won) == (2, [5, 6], False)


@pytest.mark.req("B1", "law 7")
def test_a_token_is_larger_than_any_seen_and_not_before_the_latest_clock() -> None:
    assert votes([1, 7, 100], [1, 3, 250], [1, 0, 90]).token == 250
    assert votes([1, 700, 100], [1, 3, 250], [1, 0, 90]).token == 701


@pytest.mark.req("B1", "law 7")
def test_only_the_voters_a_token_was_chosen_from_count_when_it_is_written() -> None:
    commit = Commit(5, frozenset({0, 1, 2}))
    held: list[bool] = []
    for place in (0, 3, 4, 1, 2):
        commit.hear(place, [1])
        held.append(commit.held)
    assert held == [False, False, False, False, True]
    refused = Commit(5, frozenset({0, 1, 2}))
    refused.hear(0, [0])
    for place in (3, 4, 1):
        refused.hear(place, [1])
    refused.hear(2, [1])
    assert not refused.held
    assert refused.decided


@pytest.mark.req("R34", "R21")
def test_a_quorum_of_not_ours_is_a_loss_and_too_few_answers_are_none() -> None:
    tally = Tally(5)
    for place, answer in enumerate((1, 0, 0)):
        tally.hear(place, [answer])
    assert tally.answered
    assert (tally.held, tally.lost) == (False, False)
    tally.hear(3, [0])
    assert (tally.held, tally.lost) == (False, True)


@pytest.mark.req("R36", "R34")
def test_a_renewal_counts_only_who_is_not_quarantined() -> None:
    """Who is may have voted for somebody else before it forgot that and was told of us. Its "not
    yours" counts all the same."""
    batch = Batch(3, 2, lambda place: place != 2)
    batch.hear(0, [1, 0])
    batch.hear(2, [1, 0])
    assert not batch.tallies[0].held
    assert batch.tallies[1].lost
    batch.hear(1, [1, 0])
    assert batch.tallies[0].held


def test_misconfigured_nodes_are_the_reason_only_if_no_quorum_is_left() -> None:
    wrong, denied = Misconfigured("password"), ReplyError("NOPERM this user has no permissions")
    names = [f"n{place}" for place in range(5)]
    assert votes(wrong, denied, NotSent(""), NotSent(""), NotSent("")).hopeless(names) is None
    error = votes(denied, wrong, denied, NotSent(""), NotSent("")).hopeless(names)
    assert error is not None
    assert "n0" in str(error)


class Door:
    """Connections to nodes, of which some refuse."""

    def __init__(self, refusals: dict[int, Exception]) -> None:
        self.refusals = refusals

    async def line(self, member: Member, deadline: float) -> Any:
        if member.address[1] in self.refusals:
            raise self.refusals[member.address[1]]
        return self

    async def request(self, data: bytes, count: int, deadline: float) -> Any:
        return b"OK"

    def close(self) -> None:
        pass

    @property
    def sock(self) -> Any:
        return closed_socket


closed_socket = socket.socket()
closed_socket.close()


class Nodes:
    """What a council answers to what all nodes are asked."""

    def __init__(self, *answers: Any) -> None:
        self.members = [Member(("n", 7000 + place), Login("", "", 0), 0.0) for place in range(4)]
        self.answers = answers

    async def ask(self, letter: Any, ballot: Any, *_: Any) -> None:
        for place, answer in enumerate(self.answers):
            if isinstance(answer, Exception):
                ballot.fail(place, answer)
            else:
                ballot.hear(place, [answer])


@pytest.mark.req("R34")
def test_with_half_of_an_even_number_misconfigured_nobody_waits_for_a_quorum() -> None:
    """Three of four are needed; so two that will never answer are enough to say so at once."""
    port, wrong = ThreadPort(), Misconfigured("the password is wrong")
    nodes: Any = Nodes(wrong, wrong, b"", b"")
    doors: Any = Door({7000: wrong, 7003: wrong})
    with pytest.raises(Misconfigured, match="2 of 4 nodes can be linked to"):
        drive(appear(port, doors, nodes, "key", 1.0, "somebody", now() + 5))
    with pytest.raises(Misconfigured, match="the password is wrong"):
        drive(RedlockRoll(port, nodes, Writer("p", True, 0.0), 1.0).look(now() + 5))
    with pytest.raises(Misconfigured, match="the password is wrong"):
        drive(ask_everybody(nodes, Letter(), now() + 5))
    doors.refusals[7000] = NotSent("connection refused")  # it may come back
    nodes.answers = wrong, NotSent("connection refused"), b"", b""
    with pytest.raises(Unavailable, match="2 of 4 nodes can be linked to"):
        drive(appear(port, doors, nodes, "key", 1.0, "somebody", now() + 5))
    with pytest.raises(Unavailable, match=r"only 2 of 4 nodes answered, and 3 are needed \(n:7000"):
        drive(ask_everybody(nodes, Letter(), now() + 5))


def test_what_is_owed_is_forgotten_only_when_it_is_noted_elsewhere() -> None:
    """It was taken out first: an interrupt just then lost it, another thread's debt broke it."""
    member = Member(("127.0.0.1", 1), Login("", "", 0), 0.0)
    debts = [Debt(f"o{n}", now() + (60 if n else -1), b"", b"") for n in range(3)]
    for debt in debts:
        member.owe(debt)
    assert member.due() == member.due() == debts[1:]
    member.paid(debts[1:2])
    assert member.due() == debts[2:]


def test_quarantined_nodes_are_no_quorum_to_do_without_the_others() -> None:
    """Two had failed a moment ago, one of the others was quarantined: nobody could win, and the two
    were not asked."""
    members = [Member(("127.0.0.1", port), Login("", "", 0), 30.0) for port in range(1, 6)]
    for member in members:
        member.met(f"run{member}", 100.0, False)
    members[0].failed(NotSent("away"))
    members[1].failed(NotSent("away"))
    assert list(places_to_ask(members, 3)) == [2, 3, 4]
    members[2].met("another", 0.0, False)
    assert list(places_to_ask(members, 3)) == [0, 1, 2, 3, 4]
