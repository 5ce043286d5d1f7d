"""Answers in MySQL's text protocol: from packets to results.

Contract: pure; `read` takes packets, one after another, as far as one answer goes. PyMySQL's own
reading makes objects of every packet, column and row, of which nobody here wants to know: half of
what a lock cost us. What becomes of values is as there. Errors are PyMySQL's.
Partner: `threads.py`, which has the packets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pymysql import err
from pymysql.constants import FIELD_TYPE
from pymysql.converters import decoders, through

from holdfast.backends.sql.session import Result

__all__ = ["read"]

OK, NULL, EOF, ERROR = 0x00, 0xFB, 0xFE, 0xFF
"""First bytes of packets; NULL is a value's, and as a packet's the wish for a file of ours."""

SHORT = 9
"""An EOF packet is shorter than this; a row that begins with the same byte is not."""

WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
BINARY = b"\x3f\x00"
"""The character set of bytes."""

INTEGERS = frozenset(
    {
        FIELD_TYPE.TINY,
        FIELD_TYPE.SHORT,
        FIELD_TYPE.LONG,
        FIELD_TYPE.INT24,
        FIELD_TYPE.LONGLONG,
        FIELD_TYPE.YEAR,
    }
)


def read(packet: Callable[[], bytes]) -> Result:
    """One answer: what was changed, or rows. Raises PyMySQL's errors."""
    first = packet()
    kind = first[0]
    if kind == OK:
        changed, at = _number(first, 1)
        return Result([], changed, _number(first, at)[0])
    if kind == ERROR:
        err.raise_mysql_exception(first)
    if kind == NULL:
        raise err.InterfaceError(0, "the server asks for a file of ours")
    columns = [_decoder(packet()[-12:-5]) for _ in range(_number(first, 0)[0])]
    packet()  # an EOF
    rows: list[tuple[Any, ...]] = []
    while True:
        data = packet()
        if data[0] == EOF and len(data) < SHORT:
            return Result(rows, len(rows))
        if data[0] == ERROR:
            err.raise_mysql_exception(data)
        rows.append(_row(data, columns))


def _row(data: bytes, columns: list[Callable[[bytes], Any]]) -> tuple[Any, ...]:
    values: list[Any] = []
    at = 0
    for decode in columns:
        if data[at] == NULL:
            values.append(None)
            at += 1
        else:
            size, at = _number(data, at)
            values.append(decode(data[at : at + size]))
            at += size
    return tuple(values)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and what comes behind it."""
    first = data[at]
    if first < NULL:
        return first, at + 1
    end = at + 1 + WIDTHS[first]
    return int.from_bytes(data[at + 1 : end], "little"), end


@functools.lru_cache(maxsize=256)
def _decoder(column: bytes) -> Callable[[bytes], Any]:
    """By what the end of a column's definition says: character set, length and type."""
    kind = column[6]
    if kind in INTEGERS:
        return int
    found: Callable[[str], Any] | None = decoders.get(kind)
    if found is None or found is through:
        return _as_it_is if column[:2] == BINARY else _text
    if found is float:
        return float
    return lambda data: found(data.decode())


def _as_it_is(data: bytes) -> bytes:
    return data


def _text(data: bytes) -> str:
    return data.decode()
