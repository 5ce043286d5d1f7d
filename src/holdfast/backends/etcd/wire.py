"""etcd's requests, as far as locks need them, written as bytes.

Contract: protocol buffers by hand, with the field numbers of etcd's API (etcdserverpb, 3.4). There
are few of them and they do not change; and so no generated code has to suit the version of protobuf
that somebody else has installed. Partner: `answers.py`, which reads what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AUTHENTICATE",
    "DELETE",
    "KEEP_ALIVE",
    "LEASE_GRANT",
    "LEASE_REVOKE",
    "RANGE",
    "TIME_TO_LIVE",
    "TXN",
    "WATCH",
    "absent",
    "after",
    "authenticate",
    "compare",
    "delete",
    "get",
    "lease_grant",
    "lease_id",
    "op_delete",
    "op_get",
    "op_put",
    "op_txn",
    "time_to_live",
    "txn",
    "watch_cancel",
    "watch_create",
]

RANGE = "/etcdserverpb.KV/Range"
DELETE = "/etcdserverpb.KV/DeleteRange"
TXN = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
TIME_TO_LIVE = "/etcdserverpb.Lease/LeaseTimeToLive"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"

EQUAL, LESS = 0, 2
CREATE, MOD, VALUE = 1, 2, 3
ASCENDING, DESCENDING = 1, 2
BY_CREATION = 2


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    """A number's field; 0 is the default and need not be said."""
    return _varint(number << 3) + _varint(value) if value else b""


def _text(number: int, value: bytes) -> bytes:
    """A field of bytes, or a message inside a message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def after(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def get(
    key: bytes,
    end: bytes = b"",
    *,
    limit: int = 0,
    order: int = 0,
    keys_only: bool = False,
    created_before: int = 0,
) -> bytes:
    """A RangeRequest; with `order`, sorted by creation."""
    return (
        _text(1, key)
        + (_text(2, end) if end else b"")
        + _number(3, limit)
        + (_number(5, order) + _number(6, BY_CREATION) if order else b"")
        + _number(8, keys_only)
        + _number(13, created_before - 1 if created_before else 0)
    )


def delete(key: bytes, end: bytes = b"") -> bytes:
    return _text(1, key) + (_text(2, end) if end else b"")


def op_get(request: bytes) -> bytes:
    return _text(1, request)


def op_put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    return _text(2, _text(1, key) + (_text(2, value) if value else b"") + _number(3, lease))


def op_delete(key: bytes) -> bytes:
    return _text(3, _text(1, key))


def op_txn(request: bytes) -> bytes:
    return _text(4, request)


def absent(key: bytes, end: bytes = b"") -> bytes:
    """The comparison: there is no such key, or none in this range."""
    return compare(key, CREATE, EQUAL, 0, end)


def compare(key: bytes, what: int, how: int, value: int | bytes, end: bytes = b"") -> bytes:
    if isinstance(value, bytes):
        union = _text(7, value)
    else:
        union = _varint((5 if what == CREATE else 6) << 3) + _varint(value)
    return (
        _number(1, how)
        + _number(2, what)
        + _text(3, key)
        + union
        + (_text(64, end) if end else b"")
    )


def txn(compares: Sequence[bytes], then: Sequence[bytes], otherwise: Sequence[bytes]) -> bytes:
    return b"".join(
        [_text(1, one) for one in compares]
        + [_text(2, one) for one in then]
        + [_text(3, one) for one in otherwise]
    )


def lease_grant(seconds: int) -> bytes:
    return _number(1, seconds)


def lease_id(lease: int) -> bytes:
    """A LeaseKeepAliveRequest, a LeaseRevokeRequest."""
    return _number(1, lease)


def time_to_live(lease: int, keys: bool) -> bytes:
    return _number(1, lease) + _number(2, keys)


def authenticate(name: str, password: str) -> bytes:
    return _text(1, name.encode()) + _text(2, password.encode())


def watch_create(watch: int, key: bytes, end: bytes, since: int, puts: bool, before: bool) -> bytes:
    """`before`: events also say what was there before."""
    return _text(
        1,
        _text(1, key)
        + (_text(2, end) if end else b"")
        + _number(3, since)
        + (b"" if puts else _varint(5 << 3) + b"\0")  # the filter NOPUT, which is 0
        + _number(6, before)
        + _number(7, watch),
    )


def watch_cancel(watch: int) -> bytes:
    return _text(2, _number(1, watch))
