"""`etcd://`: claims as keys in the order of their creation, on leases that are kept alive.

Contract: `core/backend.py`. Acquire is one transaction, also when it must queue; release is one
deletion. The key's name is made of the owner, so that asking twice is asking once, and deleting it
can hit nobody else. What is in flight is counted (`Entry.pending`): if a request that puts the key
was never answered when its claim is given up, a tombstone is put in the same transaction that
deletes the key, which late requests meet (law 3; `sessions.py` says how long).

Partners: `line.py`, what is asked and what it means; `sessions.py`; `hub.py`, how a waiter is
called; `channel.py`, how any of it gets there.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.etcd import line, overview, wire
from holdfast.backends.etcd.answers import Deleted, KeyValue, LeaseAnswer, Ranged, TxnAnswer
from holdfast.backends.etcd.asynchronous import AsyncTransport
from holdfast.backends.etcd.blocking import BlockingTransport
from holdfast.backends.etcd.cells import Cells
from holdfast.backends.etcd.channel import NOT_FOUND, Channel, Request, Site, refusal
from holdfast.backends.etcd.entry import Blocker, Entry
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.hub import Hub, Watch
from holdfast.backends.etcd.keys import Keys, Values, described, lineman
from holdfast.backends.etcd.sessions import Session, Sessions
from holdfast.backends.etcd.site import OPTIONS, site_of
from holdfast.backends.local import Tombstones, shown
from holdfast.backends.url import Url
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Cell,
    CellConflict,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Mode,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["EtcdBackend"]

LITTLE = 0.01
LOOK = 5.0
"""How long who was woken waits for the answer to its look."""
REVOKE = 1.0
"""How long `close` waits for its leases to be revoked."""

NOT_OURS = "its key is gone from etcd: it expired, or somebody deleted or evicted it"
TOO_LATE = "its time ran out before this was asked"


class EtcdBackend:
    options = OPTIONS
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset(Mode),
        crash_release="session",
        failover="Nothing that was acknowledged, as long as a majority of the members keeps its disk.",
    )

    def __init__(self, site: Site, keys: Keys) -> None:
        self._site = site
        self._keys = keys
        self._entries: dict[str, Entry] = {}
        self._graves = Tombstones()
        self._values = Values()
        self._closed = False

    @classmethod
    def from_url(cls, url: Url) -> EtcdBackend:
        return cls(*site_of(url))

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port
        self._incarnation = port.incarnation()
        transport = AsyncTransport if port.asynchronous else BlockingTransport
        self._channel = Channel(self._site, transport(self._site.tls), port)
        self._sessions = Sessions(self._channel, port, signals)
        self._hub = Hub(self._channel, port)
        self._cells = Cells(self._channel, self._hub, self._keys, port)

    async def close(self) -> None:
        if self._port.incarnation() != self._incarnation:
            return  # law 8: all of this is the parent's
        self._closed = True
        for entry in list(self._entries.values()):
            entry.gone = True
            entry.event.set()
        deadline = self._port.now() + REVOKE
        try:
            await self._hub.close(deadline)
            await self._sessions.close(deadline)
        finally:
            await self._channel.close()

    # -- taking -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        owner, port = claim.owner, self._port
        if self._graves.graves and self._graves.cover(owner, port.now()):
            return Buried()
        entry = self._entries.get(owner)
        if entry is None:
            name = self._keys.line(claim.name)
            entry = Entry(claim, name, *self._keys.claim(claim, name), port.event())
            self._entries[owner] = entry
        try:
            for _ in range(2):  # the second time on a new session, if the first was gone
                session = await self._session(entry, deadline)
                if session is None:
                    return Buried()
                answer = await self._ask(entry, session, queue, deadline)
                if answer is not None:
                    return answer
            raise Unavailable("etcd forgets its leases as soon as it has granted them")
        finally:
            if not entry.pending and not entry.revision:  # the store has nothing of it
                self._forget(entry)

    async def _session(self, entry: Entry, deadline: float) -> Session | None:
        """The session of this claim; None: it had one, which is gone, and with it its place."""
        session = entry.session
        if session is None:
            session = entry.session = await self._sessions.get(entry.claim.ttl, deadline)
            session.entries[entry.claim.owner] = entry
            return session
        return session if self._sessions.alive(session) else None

    async def _ask(
        self, entry: Entry, session: Session, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown | None:
        """One transaction. None: the session is gone, and nothing was done."""
        claim, port = entry.claim, self._port
        sent = port.now()
        if sent >= session.until:  # the lease was over when it was granted
            return Grant(claim, session.until)
        requests: list[Request] = [(wire.TXN, line.ask(entry, self._values.write(claim), queue))]
        if session.old(sent, claim.fixed):
            requests.append((wire.KEEP_ALIVE, wire.lease_id(session.id)))
        entry.pending += 1  # stays so if we are interrupted
        results = await self._channel.ask(deadline, *requests)
        if len(results) > 1:
            self._sessions.kept(session, sent, results[1])
        result = results[0]
        if isinstance(result, Failure):
            if result.applied is None:
                return Unknown(result.text)
            entry.pending -= 1
            if not _lease_gone(result):
                raise refusal(result)
            self._sessions.end(session, "its etcd lease is gone: somebody revoked it")
            if entry.revision or entry.pending:
                return Buried()
            self._sessions.leave(entry)
            entry.session = None
            return None
        entry.pending -= 1
        answer = TxnAnswer.read(result)
        if entry.gone or self._graves.cover(claim.owner, port.now()):
            return Buried()  # withdrawn while this was under way
        if not answer.succeeded:
            return await self._second(entry, session, answer, queue, sent, deadline)
        entry.revision = answer.revision
        if not queue:
            return self._grant(entry, session, sent)
        ahead = line.ahead(entry, answer, 1)
        if ahead.blocker is None:
            return self._grant(entry, session, sent)
        entry.blocker = ahead.blocker
        return _busy(ahead.first)

    async def _second(
        self,
        entry: Entry,
        session: Session,
        answer: TxnAnswer,
        queue: bool,
        sent: float,
        deadline: float,
    ) -> Grant | Busy | Buried | Unknown:
        """The key was there already, or its tombstone, or (without queueing) somebody else."""
        own, tomb = answer.ranged(0).kvs, answer.ranged(1).kvs
        if tomb or (own and own[0].lease != session.id):
            return Buried()
        if own:  # an attempt before this one had put it
            entry.revision = own[0].created
            sent = self._port.now()
            looked = await self._look(entry, deadline)
            if isinstance(looked, Failure):
                return Unknown(looked.text)
            if looked is None:
                entry.revision = 0
                return Unknown("the key was deleted meanwhile")
            if looked.blocker is None:
                return self._grant(entry, session, sent)
            entry.blocker = looked.blocker
            return _busy(looked.first)
        ahead = line.ahead(entry, answer, 2)
        if ahead.blocker is not None or queue:
            return _busy(ahead.first)
        # There is room on a semaphore that has others.
        value = self._values.write(entry.claim)
        request = line.retry(entry, value, answer.revision)
        entry.pending += 1
        (result,) = await self._channel.ask(deadline, (wire.TXN, request))
        if isinstance(result, Failure):
            if result.applied is None:
                return Unknown(result.text)
            entry.pending -= 1
            raise refusal(result)
        entry.pending -= 1
        answer = TxnAnswer.read(result)
        if not answer.succeeded:
            return await self._second(entry, session, answer, queue, sent, deadline)
        entry.revision = answer.revision
        return self._grant(entry, session, sent)

    def _grant(self, entry: Entry, session: Session, sent: float) -> Grant:
        claim = entry.claim
        until = min(valid_until(sent, claim.ttl), session.until)
        entry.until = until
        entry.held = True
        entry.blocker = None
        return Grant(claim, until, entry.revision)

    # -- waiting ----------------------------------------------------------------------------------

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        port = self._port
        entry = self._entries.get(claim.owner)
        if entry is None or entry.gone:  # withdrawn under our feet; the next attempt finds out
            await port.sleep(LITTLE)
            return None
        session = entry.session
        while session is not None and not entry.gone and self._sessions.alive(session):
            blocker = entry.blocker
            if blocker is not None and not await self._blocked(entry, session, blocker, deadline):
                return None
            sent = port.now()
            if entry.gone or sent >= deadline or not self._sessions.alive(session):
                return None
            entry.event.clear()
            looked = await self._look(entry, min(deadline, sent + LOOK))
            if looked is None or isinstance(looked, Failure):
                self._hub.suspect()
                return None  # the next attempt finds out
            entry.blocker = looked.blocker
            if looked.blocker is None:
                if claim.fixed and not await self._sessions.beat(session, min(deadline, sent + LOOK)):
                    return None
                return self._grant(entry, session, sent)
        return None

    async def _blocked(
        self, entry: Entry, session: Session, blocker: Blocker, deadline: float
    ) -> bool:
        """Until what is in the way has gone (True), or the next attempt must find out."""
        port = self._port
        entry.blocker = None  # whoever comes back without having waited looks
        entry.event.clear()
        watch = self._watch(entry, blocker)
        try:
            while not await entry.event.wait(min(deadline, session.beat_at)):
                now = port.now()
                if now >= deadline:
                    return False
                if now >= session.beat_at:
                    kept = await self._sessions.beat(session, min(deadline, now + session.ttl / 3))
                    if not kept:
                        self._hub.suspect()
                        return False
        finally:
            self._hub.unwatch(watch)
        return not entry.gone

    def _watch(self, entry: Entry, blocker: Blocker) -> Watch:
        since, event = blocker.revision + 1, entry.event
        if blocker.key:
            return self._hub.watch(blocker.key, since, lambda _: event.set())
        missing, mine, name = blocker.missing, entry.revision, entry.line

        def count(gone: list[KeyValue] | None) -> None:
            nonlocal missing
            for kv in gone or ():
                if kv.created < mine:
                    missing -= lineman(kv.key[len(name) :]).permits
            if gone is None or missing <= 0:
                event.set()

        return self._hub.watch(name, since, count, end=wire.after(name), before=True)

    async def _look(self, entry: Entry, deadline: float) -> line.Ahead | Failure | None:
        """What is before our key; None: it is not there."""
        (result,) = await self._channel.ask(deadline, (wire.TXN, line.look(entry)))
        if isinstance(result, Failure):
            return result
        answer = TxnAnswer.read(result)
        return line.ahead(entry, answer, 0) if answer.succeeded else None

    # -- giving back ------------------------------------------------------------------------------

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        if tombstone:
            self._graves.bury(claim.owner, self._port.now() + claim.ttl)
        entry = self._entries.get(claim.owner)
        if entry is None:
            return Released()
        entry.gone = True
        entry.event.set()
        result = await self._delete(entry, tombstone, deadline)
        if isinstance(result, Failure):
            return Unknown(result.text)
        self._forget(entry)
        return Released()

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        claim = grant.claim
        entry = self._entries.get(claim.owner)
        if entry is None or not entry.held:
            return AlreadyLost(NOT_OURS)
        now = self._port.now()
        if tombstone:
            self._graves.bury(claim.owner, now + claim.ttl)
        result = await self._delete(entry, tombstone, deadline)
        if isinstance(result, Failure):
            return Unknown(result.text)
        self._forget(entry)
        if not result:
            return AlreadyLost(NOT_OURS)
        return Released() if now < entry.until else AlreadyLost(TOO_LATE)

    async def _delete(self, entry: Entry, tombstone: bool, deadline: float) -> int | Failure:
        """Our key, if it is there (1) or not (0). If a request may still be on its way that would
        put it again, a tombstone in the same step."""
        session = entry.session
        if session is None:
            return 0
        if tombstone and entry.pending and self._sessions.alive(session):
            self._sessions.taint(session)
            request = wire.txn(
                [], [wire.op_delete(entry.key), wire.op_put(entry.tomb, b"", session.id)], []
            )
            (result,) = await self._channel.ask(deadline, (wire.TXN, request))
            if not isinstance(result, Failure):
                deleted = TxnAnswer.read(result).answers[0]
                return deleted.count if isinstance(deleted, Deleted) else 0
            if not _lease_gone(result):
                return result
            self._sessions.end(session, "its etcd lease is gone: somebody revoked it")
        (result,) = await self._channel.ask(deadline, (wire.DELETE, wire.delete(entry.key)))
        return result if isinstance(result, Failure) else Deleted.read(result).count

    def _forget(self, entry: Entry) -> None:
        self._sessions.leave(entry)
        if self._entries.get(entry.claim.owner) is entry:
            self._entries.pop(entry.claim.owner, None)

    # -- keeping ----------------------------------------------------------------------------------

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        """One keep-alive and one list of keys for each session, however many claims it has."""
        port = self._port
        sent = port.now()
        sessions: dict[int, Session] = {}
        for grant in grants:
            entry = self._entries.get(grant.claim.owner)
            if entry is not None and entry.held and entry.session is not None:
                sessions[entry.session.id] = entry.session
        alive = [one for one in sessions.values() if self._sessions.alive(one)]
        requests: list[Request] = []
        for session in alive:
            requests.append((wire.KEEP_ALIVE, wire.lease_id(session.id)))
            requests.append((wire.TIME_TO_LIVE, wire.time_to_live(session.id, True)))
        results = await self._channel.ask(deadline, *requests) if requests else []
        kept: dict[int, bool | None] = {}
        keys: dict[int, set[bytes]] = {}
        for session, beat, listed in zip(alive, results[::2], results[1::2], strict=True):
            kept[session.id] = self._sessions.kept(session, sent, beat)
            if not isinstance(listed, Failure):
                keys[session.id] = set(LeaseAnswer.read(listed).keys)
        reason = next((one.text for one in results if isinstance(one, Failure)), "")
        return [
            await self._renewed(grant, sent, kept, keys, reason, deadline) for grant in grants
        ]

    async def _renewed(
        self,
        grant: Grant,
        sent: float,
        kept: dict[int, bool | None],
        keys: dict[int, set[bytes]],
        reason: str,
        deadline: float,
    ) -> Renewed | Lost | Unknown:
        entry = self._entries.get(grant.claim.owner)
        if entry is None or not entry.held or entry.session is None:
            return Lost(NOT_OURS)
        session = entry.session
        if session.dead:
            return Lost(session.dead)
        if sent >= entry.until:
            # Its session lives on, and so does its key unless we delete it.
            await self._delete(entry, False, deadline)
            return Lost(TOO_LATE)
        if kept.get(session.id) is None:
            return Unknown(reason)
        if session.id in keys and entry.key not in keys[session.id]:
            # Another member than the one that granted may have told us: ask for the truth.
            (result,) = await self._channel.ask(
                deadline, (wire.RANGE, wire.get(entry.key, keys_only=True))
            )
            if isinstance(result, Failure):
                return Unknown(result.text)
            if not Ranged.read(result).kvs:
                self._forget(entry)
                return Lost(NOT_OURS)
        until = min(valid_until(sent, grant.claim.ttl), session.until)
        entry.until = max(entry.until, until)
        return Renewed(until)

    # -- operators and cells ----------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        return await overview.inspect(
            self._channel, self._port, self._keys, prefix, exact, deadline
        )

    async def evict(self, name: str, deadline: float) -> int:
        return await overview.evict(self._channel, self._port, self._keys, name, deadline)

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        return await self._cells.read(name, deadline)

    async def cell_write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
        deadline: float,
    ) -> Cell | CellConflict | Unknown:
        return await self._cells.write(name, value, expect, fence, ttl, deadline)

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        return await self._cells.wait(name, version, deadline)


def _busy(first: KeyValue | None) -> Busy:
    if first is None:
        return Busy()
    info = described(first.value).info
    return Busy(shown(info) if info else "")


def _lease_gone(failure: Failure) -> bool:
    return failure.code == NOT_FOUND and "lease" in failure.text
