"""The few messages of etcd that its floors need, for peers whose environment has no holdfast.

Field numbers: etcd's rpc.proto (3.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = [
    "DELETE", "GRANT", "RANGE", "TXN", "WATCH", "cancel", "delete", "first_of", "granted",
    "last_before",
    "lease_of", "own", "predecessor", "put_if_absent", "ranged_second", "revision", "watch",
    "watched_and_gone",
]  # fmt: skip

RANGE, TXN, DELETE = (f"/etcdserverpb.KV/{name}" for name in ("Range", "Txn", "DeleteRange"))
GRANT, WATCH = "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Watch/Watch"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def lease_of(seconds: int) -> bytes:
    return _number(1, seconds)


def delete(key: bytes) -> bytes:
    return _bytes(1, key)


def _sorted(line: bytes, order: int, limit: int, before: int = 0) -> bytes:
    end = line[:-1] + bytes([line[-1] + 1])
    request = _bytes(1, line) + _bytes(2, end) + _number(3, limit) + _number(5, order)
    return request + _number(6, 2) + _number(8, 1) + (_number(13, before - 1) if before else b"")


def first_of(line: bytes) -> bytes:
    """An operation: who is first in this line."""
    return _bytes(1, _sorted(line, 1, 1))


def own(line: bytes) -> bytes:
    """An operation: the last two, of whom the last is who has just come."""
    return _bytes(1, _sorted(line, 2, 2))


def last_before(line: bytes, created: int) -> bytes:
    """A request: who is just before."""
    return _sorted(line, 2, 1, created)


def put_if_absent(key: bytes, lease: int, further: Sequence[bytes]) -> bytes:
    """A request: put it unless it is there, and these operations."""
    absent = _number(2, 1) + _bytes(3, key) + _number(5, 0)  # created at 0: not there
    put = _bytes(2, _bytes(1, key) + _number(3, lease))
    return _bytes(1, absent) + b"".join(_bytes(2, one) for one in (put, *further))


def watch(number: int, key: bytes, since: int) -> bytes:
    """A request: tell of its deletion, from this revision on."""
    create = _bytes(1, key) + _number(3, since) + _number(5, 0) + _number(7, number)
    return _bytes(1, create)


def cancel(number: int) -> bytes:
    """A request: tell no more of that."""
    return _bytes(2, _number(1, number))


# -- answers ---------------------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        key, at = _read(data, at)
        value, at = _read(data, at)
        if key & 7 == 2:
            yield key >> 3, 0, data[at : at + value]
            at += value
        else:
            yield key >> 3, value, b""


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
        shift += 7


def _only(data: bytes, field: int) -> bytes:
    return next((text for number, _, text in _fields(data) if number == field), b"")


def granted(data: bytes) -> int:
    """The lease of a LeaseGrantResponse."""
    return next(value for number, value, _ in _fields(data) if number == 2)


def revision(data: bytes) -> int:
    """Of the store, when it answered."""
    return next(value for number, value, _ in _fields(_only(data, 1)) if number == 3)


def predecessor(ranged: bytes, key: bytes = b"") -> bytes:
    """The first key of a RangeResponse that is another one than this; empty: there is none."""
    keys = [_only(kv, 1) for number, _, kv in _fields(ranged) if number == 2]
    return next((one for one in keys if one != key), b"")


def ranged_second(data: bytes) -> bytes:
    """The RangeResponse of the second operation of a TxnResponse."""
    operations = [text for number, _, text in _fields(data) if number == 3]
    return _only(operations[1], 1)


def watched_and_gone(data: bytes) -> int:
    """The number of the watch whose key was deleted, if a WatchResponse says that; else 0."""
    number = next((value for field, value, _ in _fields(data) if field == 2), 0)
    return number if _only(data, 11) else 0
