"""The rules of a line in a database, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.sql.rules import FAR, LATER, Entry, Line
from holdfast.backends.sql.words import GRAVE, GRAVES, HOLDER, WAITER

NOW = 1_000_000_000
SECOND = 1_000_000
WINDOW = SECOND
EXCLUSIVE, SHARED, PERMITS = 0, 1, 2


def row(owner: bytes = b"", expires: int = 0, version: int = 7, line: int = 1) -> tuple[Any, ...]:
    return version, owner, expires, NOW, 30 * SECOND, line, b"{}", NOW


def claim(
    place: int,
    kind: int = WAITER,
    mode: int = EXCLUSIVE,
    *,
    ends: int = SECOND,
    permits: int = 1,
    most: int = 1,
    look_at: int = FAR,
) -> tuple[Any, ...]:
    """As the database tells it; its owner is named after its place."""
    return (
        kind, place, b"%d" % place, mode, permits, most, 30 * SECOND, 3 * SECOND, NOW - 1,
        NOW + ends, look_at, None, b"client", b"{}",
    )  # fmt: skip


def line_of(*claims: tuple[Any, ...], me: bytes = b"", held: bytes = b"") -> Line:
    expires = NOW + 30 * SECOND if held else 0
    return Line(row(held, expires), claims, me)


def owners(entries: list[Entry]) -> list[bytes]:
    return [entry.owner for entry in entries]


@pytest.mark.req("R8")
def test_the_first_is_let_in_and_nobody_else() -> None:
    line = line_of(claim(1), claim(2))
    assert line.advance(WINDOW)
    assert owners(line.granted) == [b"1"]
    assert [entry.owner for entry in line.waiters] == [b"2"]
    assert line.holders[b"1"].expires == NOW + WINDOW  # until it answers


@pytest.mark.req("R8")
def test_the_order_in_which_rows_come_does_not_matter() -> None:
    line = line_of(claim(9), claim(3), claim(5), me=b"9")
    assert [entry.place for entry in line.waiters] == [3, 5]
    assert line.mine is not None
    assert line.mine.place == 9


@pytest.mark.req("several dead waiters in a row")
def test_the_dead_are_passed_over_and_the_line_is_read_on() -> None:
    line = line_of(claim(1, ends=0), claim(2, ends=-5))
    assert not line.advance(WINDOW)
    line.complete = True
    line.read_on([Entry(*claim(3))])
    assert line.advance(WINDOW)
    assert owners(line.dead) == [b"1", b"2"]
    assert owners(line.granted) == [b"3"]


@pytest.mark.req("law 3", "waiter withdrawn")
def test_who_leaves_is_not_let_in_when_the_line_is_read_on() -> None:
    """Its row is still there: it is deleted with everything else that was decided."""
    line = line_of(claim(1, ends=0), claim(2, ends=0), claim(3), me=b"3")
    assert line.remove(b"3") is False
    assert not line.advance(WINDOW)
    line.complete = True
    line.read_on([Entry(*claim(3)), Entry(*claim(4))])
    assert line.advance(WINDOW)
    assert owners(line.granted) == [b"4"]
    assert owners(line.left) == [b"3"]


@pytest.mark.req("R10")
def test_readers_enter_together_and_a_writer_behind_them_waits() -> None:
    line = line_of(claim(1, mode=SHARED), claim(2, mode=SHARED))
    assert not line.advance(WINDOW)
    line.complete = True
    line.read_on([Entry(*claim(3, mode=SHARED)), Entry(*claim(4)), Entry(*claim(5, mode=SHARED))])
    assert line.advance(WINDOW)
    assert owners(line.granted) == [b"1", b"2", b"3"]
    assert {entry.fence for entry in line.granted} == {7}  # the last writer's


@pytest.mark.req("B5")
def test_permits_are_counted() -> None:
    line = line_of(
        claim(1, HOLDER, PERMITS, permits=2, most=3),
        claim(2, mode=PERMITS, permits=1, most=3),
        claim(3, mode=PERMITS, permits=1, most=3),
    )
    assert line.advance(WINDOW)
    assert owners(line.granted) == [b"2"]
    assert line.granted[0].fence is None


@pytest.mark.req("B1")
def test_tokens_grow_although_the_clock_stands_still() -> None:
    line = Line((NOW + 5, b"", 0, 0, 0, 0, b"", NOW), [], b"")
    line.take(Entry(*claim(1)))
    assert line.version == NOW + 6
    fresh = Line((0, b"", 0, 0, 0, 0, b"", NOW), [], b"")
    fresh.take(Entry(*claim(1, mode=SHARED)))
    assert fresh.version == NOW  # larger than that of any writer who was forgotten


@pytest.mark.req("law 3")
def test_the_line_is_flagged_as_long_as_anything_is_known() -> None:
    for claims, flagged in (
        ([], False),
        ([claim(1, GRAVE)], True),
        ([claim(1, GRAVE, ends=0)], False),
        ([claim(1, HOLDER, SHARED)], True),
        ([claim(1, HOLDER, SHARED, ends=0)], False),
        ([claim(1), claim(2)], True),
    ):
        line = line_of(*claims)
        line.advance(WINDOW)
        line.finish()
        assert line.flagged is flagged
        assert line.changed or flagged


@pytest.mark.req("law 3")
@pytest.mark.parametrize("ends", [SECOND, 0])
def test_tombstones_that_were_not_read_are_not_forgotten(ends: int) -> None:
    """Only a few are, however many there are: each step read all, under the row's lock."""
    claims = [claim(place, GRAVE, ends=ends) for place in range(1, GRAVES + 1)]
    line = line_of(*claims, claim(9, GRAVE), me=b"9")
    assert b"9" in line.graves
    line.advance(WINDOW)
    line.finish()
    assert line.flagged
    assert len(line.dead) == (GRAVES if ends == 0 else 0)
    assert line.sweep is (ends == 0)  # there may be many more of those


@pytest.mark.req("law 3")
def test_a_row_that_was_read_twice_is_one() -> None:
    line = line_of(claim(1, GRAVE, ends=0), claim(1, GRAVE, ends=0), me=b"1")
    assert len(line.dead) == 1
    assert not line.buried


@pytest.mark.req("key expires while waiters queue")
def test_when_to_look() -> None:
    line = line_of(claim(1), claim(2), held=b"x")
    assert line.look_at(1) == NOW + 30 * SECOND  # the first: when the holder's time is over
    assert line.look_at(2) == NOW + SECOND + LATER  # when the first should have said that it lives


@pytest.mark.req("key expires while waiters queue")
def test_the_first_is_called_when_the_new_holder_is_quicker_than_it_thinks() -> None:
    line = line_of(claim(1, look_at=NOW + 30 * SECOND))
    line.waiters[0].mode = EXCLUSIVE
    hasty = Entry(*claim(2))
    hasty.ttl = SECOND // 2
    line.take(hasty)
    line.finish()
    assert line.called is line.waiters[0]
    assert line.called.look_at == NOW + SECOND // 2
