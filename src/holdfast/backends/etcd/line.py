"""The line of one name: what is asked in one transaction, and what its answer means.

Contract: pure functions. The rule for every mode is: a claim holds when it is compatible with all
claims before it, by creation. What stands in its way can only leave, so who waits watches that:

- an exclusive claim the one just before it, whichever mode that has;
- a shared claim the last one before it that is not shared;
- permits the last one that is no permits, or, if there is none, all before it: any of them may
  leave first (a hazard), and so many must.

After waking, `look` again: who was watched may have withdrawn from the middle of the line.
"""

from __future__ import annotations

from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import KeyValue, Ranged, TxnAnswer
from holdfast.backends.etcd.entry import Blocker, Entry
from holdfast.backends.etcd.keys import lineman, shared_gap
from holdfast.backends.etcd.wire import ASCENDING, CREATE, DESCENDING, EQUAL, LESS, after
from holdfast.types import Mode

__all__ = ["Ahead", "ahead", "ask", "look", "retry"]

FURTHER = 64
"""Of the claims on a semaphore so many more are read than it has permits: who is further behind
than that looks again when so many have left."""


class Ahead:
    """What an answer says of the claims before ours."""

    __slots__ = ("blocker", "first")

    def __init__(self, blocker: Blocker | None, first: KeyValue | None) -> None:
        self.blocker = blocker  # None: the claim holds
        self.first = first  # whom to name to who asks, with its value


def ask(entry: Entry, value: bytes, queue: bool) -> bytes:
    """The attempt. With `queue` the key is put in any case, else only if the claim then holds; the
    answer has all that is needed to wait. If the key or its tombstone is there, `retry` says so."""
    claim, line = entry.claim, entry.line
    session = entry.session
    assert session is not None
    put = wire.op_put(entry.key, value, session.id)
    compares = [wire.absent(entry.tomb)]
    otherwise = [
        wire.op_get(wire.get(entry.key)),
        wire.op_get(wire.get(entry.tomb, keys_only=True)),
    ]
    if queue:
        compares.append(wire.absent(entry.key))
        return wire.txn(compares, [put, *_before(entry, 0)], otherwise)
    if claim.mode is Mode.SHARED:
        compares += [wire.absent(*gap) for gap in shared_gap(line)]
        compares.append(wire.absent(entry.key))
    else:
        compares.append(wire.absent(line, after(line)))
    return wire.txn(compares, [put], [*otherwise, *_before(entry, 0)])


def retry(entry: Entry, value: bytes, revision: int) -> bytes:
    """The attempt without queueing on a semaphore that has others: there was room at `revision`,
    and there still is if nobody came since."""
    line, session = entry.line, entry.session
    assert session is not None
    return wire.txn(
        [
            wire.absent(entry.tomb),
            wire.absent(entry.key),
            wire.compare(line, CREATE, LESS, revision + 1, after(line)),
        ],
        [wire.op_put(entry.key, value, session.id)],
        [
            wire.op_get(wire.get(entry.key)),
            wire.op_get(wire.get(entry.tomb, keys_only=True)),
            *_before(entry, 0),
        ],
    )


def look(entry: Entry) -> bytes:
    """If our key is still there: what is before it."""
    return wire.txn(
        [wire.compare(entry.key, CREATE, EQUAL, entry.revision)], _before(entry, entry.revision), []
    )


def _before(entry: Entry, revision: int) -> list[bytes]:
    """Reads what is created before `revision`; 0: everything, and whom to name."""
    line, claim = entry.line, entry.claim
    end = after(line)
    if claim.mode is Mode.SHARED:
        return [
            wire.op_get(wire.get(*gap, limit=1, order=DESCENDING, created_before=revision))
            for gap in shared_gap(line)
        ]
    if claim.mode is Mode.EXCLUSIVE:
        limit, order = 1 if revision else 2, DESCENDING  # without a revision the last is our own
    else:
        limit, order = claim.limit + FURTHER, ASCENDING
    near = wire.op_get(
        wire.get(line, end, limit=limit, order=order, keys_only=True, created_before=revision)
    )
    if revision:
        return [near]
    return [near, wire.op_get(wire.get(line, end, limit=1, order=ASCENDING))]


def ahead(entry: Entry, answer: TxnAnswer, start: int) -> Ahead:
    """What the reads of `_before` say; they begin at `start` of the answer's operations."""
    mode, revision = entry.claim.mode, answer.revision
    if mode is Mode.SHARED:
        one, two = answer.ranged(start), answer.ranged(start + 1)
        last = max((*one.kvs, *two.kvs), key=lambda kv: kv.created, default=None)
        return Ahead(Blocker(revision, last.key) if last else None, last)
    others = _others(answer.ranged(start), entry)
    told = len(answer.answers) > start + 1
    named = _others(answer.ranged(start + 1), entry) if told else []
    first = named[0] if named else None
    if mode is Mode.PERMITS:
        return Ahead(_room(entry, others, revision), first)
    return Ahead(Blocker(revision, others[0].key) if others else None, first)


def _others(ranged: Ranged, entry: Entry) -> list[KeyValue]:
    return [kv for kv in ranged.kvs if kv.key != entry.key]


def _room(entry: Entry, others: list[KeyValue], revision: int) -> Blocker | None:
    claim, taken = entry.claim, 0
    stranger: KeyValue | None = None
    for kv in others:
        one = lineman(kv.key[len(entry.line) :])
        if one.mode is not Mode.PERMITS:
            stranger = kv
        taken += one.permits
    if stranger is not None:
        return Blocker(revision, stranger.key)
    missing = taken + claim.permits - claim.limit
    return Blocker(revision, missing=missing) if missing > 0 else None
