"""The book: what a client knows of its claims, and what is done to one key at a time.

Contract: an entry is made before anything is sent and stays until the store is known to have
nothing of its claim. Partners: `taking.py` and `keeping.py`, which decide.
"""

from __future__ import annotations

from holdfast.backends.common import Tombstones
from holdfast.backends.etcd import line, wire
from holdfast.backends.etcd.answers import Deleted, Ranged, TxnAnswer
from holdfast.backends.etcd.channel import NOT_FOUND, Channel, no_space
from holdfast.backends.etcd.entry import Blocker, Entry
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.keys import Keys, Values
from holdfast.backends.etcd.reading import ask_again
from holdfast.backends.etcd.sessions import Session, Sessions
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.types import Claim, Grant, TxnGuard

__all__ = ["NOT_OURS", "TOO_LATE", "Book", "lease_gone"]

NOT_OURS = "its key is gone from etcd: it expired, or somebody deleted or evicted it"
TOO_LATE = "its time ran out before this was asked"
REVOKED = "its etcd lease is gone: it expired, or somebody revoked it"

GLANCE = 5.0
"""Seconds for the answer to a short question, before the long one is asked. Not fewer than for that
one: a store that is slow because many wait would have to read the whole line for each of them."""


class Book:
    def __init__(self, port: Port, channel: Channel, keys: Keys, signals: Signals) -> None:
        self.port = port
        self.channel = channel
        self.sessions = Sessions(channel, port, signals, self.lose)
        self.keys = keys
        self.values = Values()
        self.entries: dict[str, Entry] = {}
        self._graves = Tombstones()
        """Owners that were withdrawn: what still comes from this process is stopped here, what is
        on its way by a tombstone in the store."""

    def entry(self, claim: Claim) -> Entry:
        entry = self.entries.get(claim.owner)
        if entry is None:
            name = self.keys.line(claim.name)
            entry = Entry(claim, name, *self.keys.claim(claim, name), self.port.event())
            self.entries[claim.owner] = entry
        return entry

    def bury(self, claim: Claim) -> None:
        with self.port.mutex():
            self._graves.bury(claim, self.port.now())

    def buried(self, claim: Claim) -> bool:
        with self.port.mutex():
            return self._graves.cover(claim.owner, self.port.now())

    def lose(self, entry: Entry) -> None:
        """It is held no more. If a request of it may still be on its way, the entry stays: for
        `withdraw`, which puts the tombstone."""
        entry.held = False
        entry.revision = 0
        if not entry.pending:
            self.forget(entry)

    def forget(self, entry: Entry) -> None:
        self.sessions.leave(entry)
        if self.entries.get(entry.claim.owner) is entry:
            self.entries.pop(entry.claim.owner, None)

    def grant(self, entry: Entry, session: Session, sent: float) -> Grant:
        claim = entry.claim
        until = min(valid_until(sent, claim.ttl), session.until)
        entry.since, entry.until = sent, until
        entry.held = True
        entry.blocker = None
        return Grant(claim, until, entry.revision, token=TxnGuard(entry.key, entry.revision))

    async def look(self, entry: Entry, deadline: float) -> line.Ahead | Failure | None:
        """What is before our key; None: it is not there."""
        (result,) = await ask_again(self.channel, self.port, deadline, (wire.TXN, line.look(entry)))
        if isinstance(result, Failure):
            return result
        answer = TxnAnswer.read(result)
        return line.ahead(entry, answer, 0) if answer.succeeded else None

    async def is_before(self, entry: Entry, blocker: Blocker, deadline: float) -> bool:
        """Whether that one key is surely still ahead of ours: a read that costs the same however
        long the line is."""
        if not blocker.key:
            return False
        request = (wire.RANGE, wire.get(blocker.key, keys_only=True))
        (result,) = await self.channel.ask(min(deadline, self.port.now() + GLANCE), request)
        if isinstance(result, Failure):
            return False
        return any(kv.created < entry.revision for kv in Ranged.read(result).kvs)

    async def delete(self, entry: Entry, tombstone: bool, deadline: float) -> int | Failure:
        """Our key, if it is there (1) or not (0). If a request may still be on its way that would
        put it again, a tombstone in the same step."""
        session = entry.session
        if session is None:
            return 0
        if tombstone and entry.pending and self.sessions.alive(session):
            self.sessions.taint(session)
            request = wire.txn(
                [], [wire.op_delete(entry.key), wire.op_put(entry.tomb, b"", session.id)], []
            )
            (result,) = await self.channel.ask(deadline, (wire.TXN, request))
            if not isinstance(result, Failure):
                deleted = TxnAnswer.read(result).of(0)
                return deleted.count if isinstance(deleted, Deleted) else 0
            if not lease_gone(result):
                if no_space(result):  # the tombstone has to wait for it; the others need not
                    await self._delete(entry, deadline)
                return result
            self.sessions.end(session, REVOKED)
        return await self._delete(entry, deadline)

    async def _delete(self, entry: Entry, deadline: float) -> int | Failure:
        (result,) = await self.channel.ask(deadline, (wire.DELETE, wire.delete(entry.key)))
        return result if isinstance(result, Failure) else Deleted.read(result).count

    async def taken_back(self, entry: Entry, deadline: float) -> bool:
        """A put was refused for want of space, which etcd may say although it did it: whether
        nothing of that is left. A key that was there before is not that put's."""
        return bool(entry.revision) or not isinstance(await self._delete(entry, deadline), Failure)


def lease_gone(failure: Failure) -> bool:
    return failure.code == NOT_FOUND and "lease" in failure.text
