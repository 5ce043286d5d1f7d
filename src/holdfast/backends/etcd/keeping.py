"""Keeping locks: one keep-alive and one list of keys for each session, however many claims it has.

Contract: `renew` of `core/backend.py`. The keep-alive extends the lease; the list shows whose key
was deleted by hand, or evicted, although the lease lives.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import LeaseAnswer, TxnAnswer
from holdfast.backends.etcd.book import NOT_OURS, TOO_LATE, Book
from holdfast.backends.etcd.channel import Request
from holdfast.backends.etcd.entry import Entry
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.reading import ask_again
from holdfast.backends.etcd.sessions import Session
from holdfast.core.lease import valid_until
from holdfast.types import Grant, Lost, Renewed, Unknown

__all__ = ["renew"]

CROWD, FRESH = 8, 1 / 4
"""So many claims or more, taken at different times, are due in parts: those that come when less
than this part of the ttl has passed since the last list of keys live by that one. (A keep-alive
alone, which who waits and who comes also send, shows nobody's key.)"""
TOGETHER = 100
"""Keys in one question: etcd takes 128 operations by default."""


async def renew(
    book: Book, grants: Sequence[Grant], deadline: float
) -> Sequence[Renewed | Lost | Unknown]:
    """One keep-alive and one list of keys for each session, however many claims it has."""
    port = book.port
    sent = port.now()
    sessions: dict[int, Session] = {}
    for grant in grants:
        entry = book.entries.get(grant.claim.owner)
        if entry is not None and entry.held and entry.session is not None:
            sessions[entry.session.id] = entry.session
    kept: dict[int, bool | None] = {}
    alive: list[Session] = []
    for session in sessions.values():
        if len(grants) >= CROWD and sent - session.checked < session.ttl * FRESH:
            kept[session.id] = True  # by those of the crowd that came just before
        elif book.sessions.alive(session):
            alive.append(session)
    requests: list[Request] = []
    for session in alive:
        requests.append((wire.KEEP_ALIVE, wire.lease_id(session.id)))
        requests.append((wire.TIME_TO_LIVE, wire.time_to_live(session.id, True)))
    results = (
        await ask_again(book.channel, port, deadline, *requests, apart=True) if requests else []
    )
    keys: dict[int, set[bytes]] = {}
    for session, beat, listed in zip(alive, results[::2], results[1::2], strict=True):
        kept[session.id] = book.sessions.kept(session, sent, beat)
        if not isinstance(listed, Failure):
            keys[session.id] = set(LeaseAnswer.read(listed).keys)
    reason = next((one.text for one in results if isinstance(one, Failure)), "")
    # The list also shows whose key is gone of those that are not due now, and that may find the
    # session fresh whenever they are.
    missing = [
        entry
        for session in alive
        for entry in list(session.entries.values())
        if session.id in keys and entry.key not in keys[session.id]
        if entry.held and entry.since < sent
    ]
    gone = await _gone(book, missing, deadline)
    unsure = {entry.session for entry, found in gone.items() if isinstance(found, Failure)}
    for session in alive:
        if session.id in keys and kept[session.id] and session not in unsure:
            session.checked = sent
    due = {grant.claim.owner for grant in grants}
    for entry in missing:
        if entry.claim.owner not in due and gone[entry] is True:
            book.sessions.lose(entry, NOT_OURS)
    return [await _renewed(book, grant, sent, kept, gone, reason, deadline) for grant in grants]


async def _gone(
    book: Book, missing: Sequence[Entry], deadline: float
) -> dict[Entry, bool | Failure]:
    """Another member than the one that granted may have made the list: ask for the truth."""
    if not missing:
        return {}
    parts = [missing[start : start + TOGETHER] for start in range(0, len(missing), TOGETHER)]
    requests = [(wire.TXN, wire.txn([], [_get(one) for one in part], [])) for part in parts]
    results = await ask_again(book.channel, book.port, deadline, *requests, apart=True)
    gone: dict[Entry, bool | Failure] = {}
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, Failure):
            gone |= dict.fromkeys(part, result)
        else:
            answer = TxnAnswer.read(result)
            gone |= {entry: not answer.ranged(n).kvs for n, entry in enumerate(part)}
    return gone


def _get(entry: Entry) -> bytes:
    return wire.op_get(wire.get(entry.key, keys_only=True))


async def _renewed(
    book: Book,
    grant: Grant,
    sent: float,
    kept: dict[int, bool | None],
    gone: dict[Entry, bool | Failure],
    reason: str,
    deadline: float,
) -> Renewed | Lost | Unknown:
    entry = book.entries.get(grant.claim.owner)
    if entry is None or not entry.held or entry.session is None:
        return Lost(NOT_OURS)
    session = entry.session
    if session.dead:
        book.lose(entry)
        return Lost(session.dead)
    if sent >= entry.until:
        # Its session lives on, and so does its key unless we delete it.
        deleted = await book.delete(entry, False, deadline)
        if isinstance(deleted, Failure):
            return Unknown(deleted.text)
        book.lose(entry)
        return Lost(TOO_LATE)
    if kept.get(session.id) is None:
        return Unknown(reason)
    match gone.get(entry):
        case Failure(text=text):
            return Unknown(text)
        case True:
            book.lose(entry)
            return Lost(NOT_OURS)
        case _:
            pass
    until = min(valid_until(sent, grant.claim.ttl), session.until)
    entry.until = max(entry.until, until)
    return Renewed(until)
