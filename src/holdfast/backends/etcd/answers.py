"""etcd's answers, read from bytes: the other half of `wire.py`.

Contract: fields that are not known are skipped, as protocol buffers want it; bytes that are no
message, or not the expected one, raise `Garbled` and nothing else. Whether the request was applied
is not known then: `backend.py` says so to who must know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.errors import Unavailable

__all__ = [
    "Deleted",
    "Garbled",
    "KeyValue",
    "LeaseAnswer",
    "Ranged",
    "TxnAnswer",
    "WatchAnswer",
    "token_of",
]

NESTED = 8
"""Transactions inside transactions: so many levels are read. We ask for three, and Python's stack
ends somewhere."""

NUMBER, BYTES = 0, 2
HEADER = {3: NUMBER}
KEY_VALUE = {1: BYTES, 2: NUMBER, 3: NUMBER, 5: BYTES, 6: NUMBER}
RANGED = {1: BYTES, 2: BYTES}
DELETED = {1: BYTES, 2: NUMBER}
TXN = {1: BYTES, 2: NUMBER, 3: BYTES}
OPERATION = {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES}
LEASE = {2: NUMBER, 3: NUMBER, 5: BYTES}
TOKEN = {2: BYTES}
WATCH = {1: BYTES, 2: NUMBER, 3: NUMBER, 4: NUMBER, 6: BYTES, 11: BYTES}
EVENT = {1: NUMBER, 2: BYTES, 3: BYTES}


class Garbled(Unavailable):
    """What came is no answer of etcd's: whoever is there, it is no etcd."""


def _fields(data: bytes, kinds: dict[int, int]) -> Iterator[tuple[int, int, bytes]]:
    """(number, value, bytes) of each field; the value of bytes is 0. `kinds`: of the fields that
    are looked at, of which a message of somebody else has others."""
    at, end = 0, len(data)
    try:
        while at < end:
            key = data[at]
            at += 1
            if key >= 128:
                key, at = _long(data, at, key)
            kind = key & 7
            number = key >> 3
            if not number or kinds.get(number, kind) != kind:
                raise Garbled("a field is of another kind")
            value = data[at] if kind in (0, 2) else 0
            if kind in (0, 2):
                at += 1
                if value >= 128:
                    value, at = _long(data, at, value)
            if kind == 0:
                yield number, value, b""
            elif kind == 2:
                if at + value > end:
                    raise Garbled("a message ends in the middle")
                yield number, 0, data[at : at + value]
                at += value
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                raise Garbled("a field is of no kind")
    except IndexError:
        raise Garbled("a message ends in the middle") from None
    if at > end:
        raise Garbled("a message ends in the middle")


def _long(data: bytes, at: int, first: int) -> tuple[int, int]:
    value, shift = first & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128 and not value >> 64:
            return value, at
        if shift > 63:
            raise Garbled("a number is too long")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@dataclass(slots=True, eq=False)
class KeyValue:
    key: bytes = b""
    created: int = 0
    modified: int = 0
    value: bytes = b""
    lease: int = 0

    @classmethod
    def read(cls, data: bytes) -> KeyValue:
        kv = cls()
        for number, value, text in _fields(data, KEY_VALUE):
            if number == 1:
                kv.key = text
            elif number == 2:
                kv.created = value
            elif number == 3:
                kv.modified = value
            elif number == 5:
                kv.value = text
            elif number == 6:
                kv.lease = value
        return kv


def _revision(header: bytes) -> int:
    for number, value, _ in _fields(header, HEADER):
        if number == 3:
            return value
    return 0


@dataclass(slots=True, eq=False)
class Ranged:
    """What a range holds."""

    revision: int = 0  # of the whole store, when it was read
    kvs: list[KeyValue] = field(default_factory=list[KeyValue])

    @classmethod
    def read(cls, data: bytes) -> Ranged:
        ranged = cls()
        for number, _, text in _fields(data, RANGED):
            if number == 1:
                ranged.revision = _revision(text)
            elif number == 2:
                ranged.kvs.append(KeyValue.read(text))
        return ranged


@dataclass(slots=True, eq=False)
class Deleted:
    revision: int = 0
    count: int = 0

    @classmethod
    def read(cls, data: bytes) -> Deleted:
        deleted = cls()
        for number, value, text in _fields(data, DELETED):
            if number == 1:
                deleted.revision = _revision(text)
            elif number == 2:
                deleted.count = value
        return deleted


@dataclass(slots=True, eq=False)
class TxnAnswer:
    """Whether the comparisons held, and what each operation of that branch says."""

    revision: int = 0
    succeeded: bool = False
    answers: list[Ranged | Deleted | TxnAnswer | None] = field(
        default_factory=list["Ranged | Deleted | TxnAnswer | None"]
    )

    @classmethod
    def read(cls, data: bytes, levels: int = NESTED) -> TxnAnswer:
        if not levels:
            raise Garbled("too many messages inside one another")
        answer = cls()
        for number, value, text in _fields(data, TXN):
            if number == 1:
                answer.revision = _revision(text)
            elif number == 2:
                answer.succeeded = bool(value)
            elif number == 3:
                answer.answers.append(_operation(text, levels - 1))
        return answer

    def of(self, index: int) -> Ranged | Deleted | TxnAnswer | None:
        """What the operation of this place says."""
        if index >= len(self.answers):
            raise Garbled("an operation has no answer")
        return self.answers[index]

    def ranged(self, index: int) -> Ranged:
        answer = self.of(index)
        if not isinstance(answer, Ranged):
            raise Garbled("an operation has another's answer")
        return answer


def _operation(data: bytes, levels: int) -> Ranged | Deleted | TxnAnswer | None:
    for number, _, text in _fields(data, OPERATION):
        if number == 1:
            return Ranged.read(text)
        if number == 3:
            return Deleted.read(text)
        if number == 4:
            return TxnAnswer.read(text, levels)
    return None  # a put


@dataclass(slots=True, eq=False)
class LeaseAnswer:
    """A lease granted, kept alive or looked at. `ttl` <= 0: it is gone."""

    id: int = 0
    ttl: int = 0
    keys: list[bytes] = field(default_factory=list[bytes])

    @classmethod
    def read(cls, data: bytes) -> LeaseAnswer:
        answer = cls()
        for number, value, text in _fields(data, LEASE):
            if number == 2:
                answer.id = value
            elif number == 3:
                answer.ttl = _signed(value)
            elif number == 5:
                answer.keys.append(text)
        if not answer.id:  # all of them name it; and what is put on no lease would stay for ever
            raise Garbled("a lease has no number")
        return answer


def token_of(data: bytes) -> str:
    """The token in an AuthenticateResponse."""
    token = next((text for number, _, text in _fields(data, TOKEN) if number == 2), b"")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise Garbled("a token is no text") from None


@dataclass(slots=True, eq=False)
class WatchAnswer:
    """Events of one watch. `gone` has the keys that were deleted, as they were before if that was
    asked for. `created`: the store's revision when the watch began, in the answer that says so.

    Hazard: the header's revision is the store's, and of events that are due since long etcd sends a
    part at a time: how far we have come is what the events themselves say (`reached`)."""

    watch: int = 0
    created: int = 0
    reached: int = 0
    canceled: bool = False
    reason: str = ""
    gone: list[KeyValue] = field(default_factory=list[KeyValue])

    @classmethod
    def read(cls, data: bytes) -> WatchAnswer:
        answer = cls()
        header = b""
        for number, value, text in _fields(data, WATCH):
            if number == 1:
                header = text
            elif number == 2:
                answer.watch = value
            elif number == 3 and value:
                answer.created = _revision(header)
            elif number == 4:
                answer.canceled = bool(value)
            elif number == 6:
                answer.reason = text.decode("utf-8", "replace")
            elif number == 11:
                answer._event(text)
        return answer

    def _event(self, data: bytes) -> None:
        deleted, now, before = False, b"", b""
        for number, value, text in _fields(data, EVENT):
            if number == 1:
                deleted = value == 1
            elif number == 2:
                now = text
            elif number == 3:
                before = text
        kv = KeyValue.read(now)
        self.reached = max(self.reached, kv.modified)
        if deleted:
            self.gone.append(KeyValue.read(before) if before else kv)
