"""MySQL's answers: packets, as the protocol has them, and what becomes of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace

import pymysql
import pytest

from holdfast.backends.mysql.answers import read
from holdfast.backends.mysql.threads import LARGEST, ThreadSession
from holdfast.backends.sql.session import Gone, Result
from holdfast.ports.clock import now
from holdfast.ports.thread import drive

EOF = b"\xfe\0\0\2\0"


def column(kind: int, charset: int = 63) -> bytes:
    """A definition with names of various lengths, which nobody reads."""
    names = b"\3def\0\1t\1t\4name\4name"
    return b"".join(
        (names, b"\x0c", charset.to_bytes(2, "little"), b"\x14\0\0\0", bytes([kind]), bytes(5))
    )


def packets(*payloads: bytes) -> Callable[[], bytes]:
    return iter(payloads).__next__


def test_what_was_changed() -> None:
    assert read(packets(b"\0\1\0\2\0\0\0")) == Result([], 1, 0)
    large = b"\0\xfc\x10\x27\xfe" + (1 << 50).to_bytes(8, "little") + b"\2\0\0\0"
    assert read(packets(large)) == Result([], 10_000, 1 << 50)
    assert read(packets(b"\0\0\xfd\1\2\3\2\0\0\0")) == Result([], 0, 0x030201)


def test_rows() -> None:
    types = [column(8), column(253), column(253, 45), column(246), column(5), column(3)]
    row = b"\2-7\3a\0b\2\xc3\xa9\0041.50\0032.5\xfb"
    long = b"\0011\xfc\x2c\1" + b"x" * 300 + b"\1y\0011\0011\0019"
    result = read(packets(b"\6", *types, EOF, row, long, EOF))
    assert result.rows == [
        (-7, b"a\0b", "é", Decimal("1.50"), 2.5, None),
        (1, b"x" * 300, "y", Decimal(1), 1.0, 9),
    ]
    assert result.changed == 2
    assert read(packets(b"\1", column(8), EOF, EOF)) == Result([], 0)


def test_a_value_of_many_bytes_is_not_the_end() -> None:
    """A row may begin as an EOF does."""
    value = b"z" * 20
    row = b"\xfe" + len(value).to_bytes(8, "little") + value
    assert read(packets(b"\1", column(253), EOF, row, EOF)).rows == [(value,)]


def test_errors() -> None:
    with pytest.raises(pymysql.OperationalError, match="1213"):
        read(packets(b"\xff\xbd\x04#40001Deadlock found"))
    with pytest.raises(pymysql.Error, match="1317"):  # in the middle of the rows
        read(packets(b"\1", column(8), EOF, b"\0011", b"\xff\x25\x05#70100interrupted"))
    with pytest.raises(pymysql.InterfaceError):
        read(packets(b"\xfbfile"))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, ThreadSession]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = SimpleNamespace(_sock=ours, _next_seq_id=1, _force_close=ours.close)
        connection._execute_command = lambda command, text: None
        yield theirs, ThreadSession(connection)


def framed(payload: bytes, number: int) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def ask(session: ThreadSession, statements: int = 1) -> list[Result]:
    return drive(session.batch([("SELECT 1", ())] * statements, now() + 10))


def test_answers_come_in_pieces_and_together(ends: tuple[socket.socket, ThreadSession]) -> None:
    far, session = ends
    one = [b"\1", column(8), EOF, b"\0011", EOF]
    stream = b"".join(framed(data, number) for number, data in enumerate([*one, *one], 1))

    def trickle() -> None:
        for at in range(0, len(stream), 7):
            far.sendall(stream[at : at + 7])

    writing = threading.Thread(target=trickle)
    writing.start()
    assert [result.rows for result in ask(session, 2)] == [[(1,)], [(1,)]]
    writing.join()
    far.sendall(stream)
    assert [result.rows for result in ask(session, 2)] == [[(1,)], [(1,)]]
    assert session.usable
    assert not session.looks_dead()


def test_a_packet_that_goes_on_in_the_next(ends: tuple[socket.socket, ThreadSession]) -> None:
    far, session = ends
    value = b"v" * (LARGEST + 100)
    row = b"\xfd" + b"\xff\xff\xff" + value[:LARGEST]  # as long as a number of three bytes can say
    parts = [b"\1", column(253), EOF, row[:LARGEST], row[LARGEST:], EOF]
    stream = b"".join(framed(data, number) for number, data in enumerate(parts, 1))
    writing = threading.Thread(target=far.sendall, args=(stream,))
    writing.start()
    assert ask(session)[0].rows == [(value[:LARGEST],)]
    writing.join()


def test_a_farewell_is_no_answer(ends: tuple[socket.socket, ThreadSession]) -> None:
    far, session = ends
    far.sendall(framed(b"\xff\x85\x04#08S01Server shutdown in progress", 0))
    assert session.looks_dead()
    with pytest.raises(Gone) as caught:
        ask(session)
    assert caught.value.sent
    assert not session.usable


def test_the_end_in_the_middle(ends: tuple[socket.socket, ThreadSession]) -> None:
    far, session = ends
    far.sendall(framed(b"\0\1\0\2\0\0\0", 1)[:6])
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(Gone):
        ask(session)
