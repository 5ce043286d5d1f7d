"""Taking a lock: the attempt, and the wait until it is worth another look.

Contract: `core/backend.py`. Acquire is one transaction, also when it must queue. Requests that put
the key are counted before they are sent (`Entry.pending`) and no more when they are answered: what
is left when the claim is given up may still arrive. Partners: `line.py`, what is asked and what it
means; `hub.py`, how a waiter is called.
"""

from __future__ import annotations

from holdfast.backends.common import shown
from holdfast.backends.etcd import line, wire
from holdfast.backends.etcd.answers import Garbled, KeyValue, TxnAnswer
from holdfast.backends.etcd.book import REVOKED, Book, lease_gone
from holdfast.backends.etcd.channel import Request, no_space, refusal
from holdfast.backends.etcd.entry import Blocker, Entry
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.hub import Hub, Watch
from holdfast.backends.etcd.keys import described, lineman
from holdfast.backends.etcd.sessions import Session
from holdfast.core.backoff import pause
from holdfast.errors import Unavailable
from holdfast.types import Buried, Busy, Claim, Grant, Unknown

__all__ = ["Taking"]

LITTLE = 0.01
LOOK = 5.0
"""How long who was woken waits for the answer to its look."""


class Taking:
    def __init__(self, book: Book, hub: Hub) -> None:
        self._book = book
        self._hub = hub
        self._port = book.port

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        if self._book.buried(claim):
            return Buried()
        entry = self._book.entry(claim)
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
                self._book.forget(entry)

    async def _session(self, entry: Entry, deadline: float) -> Session | None:
        """The session of this claim; None: it had one, which is gone, and with it its place."""
        session = entry.session
        if session is None:
            session = entry.session = await self._book.sessions.get(entry.claim.ttl, deadline)
            session.entries[entry.claim.owner] = entry
            return session
        return session if self._book.sessions.alive(session) else None

    async def _ask(
        self, entry: Entry, session: Session, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown | None:
        """One transaction. None: the session is gone, and nothing was done."""
        claim = entry.claim
        sent = self._port.now()
        if sent >= session.until:  # the lease was over when it was granted
            return Grant(claim, session.until)
        requests: list[Request] = [
            (wire.TXN, line.ask(entry, self._book.values.write(claim), queue))
        ]
        if session.old(sent, claim.fixed):
            requests.append((wire.KEEP_ALIVE, wire.lease_id(session.id)))
        answer, others = await self._put(entry, deadline, *requests)
        if others:
            self._book.sessions.kept(session, sent, others[0])
        if isinstance(answer, Failure):
            if answer.applied is None:
                return Unknown(answer.text)
            if not lease_gone(answer):
                raise refusal(answer)
            self._book.sessions.end(session, REVOKED)
            if entry.revision or entry.pending:
                return Buried()
            self._book.sessions.leave(entry)
            entry.session = None
            return None
        if answer is None or entry.gone or session.dead or self._book.buried(claim):
            return Buried()  # withdrawn, or its lease over, while this was under way
        if not answer.succeeded:
            return await self._second(entry, session, answer, queue, sent, deadline)
        if not queue:
            return self._book.grant(entry, session, sent)
        ahead = line.ahead(entry, answer, 1)
        if ahead.blocker is None:
            return self._book.grant(entry, session, sent)
        entry.blocker = ahead.blocker
        return _busy(ahead.first)

    async def _put(
        self, entry: Entry, deadline: float, *requests: Request
    ) -> tuple[TxnAnswer | Failure | None, list[bytes | Failure]]:
        """Requests of which the first puts the key; None: it was withdrawn, and nothing was sent.

        It counts as under way until what it did is noted: whatever interrupts us in between, the
        key is looked for when the claim is given up."""
        entry.pending += 1
        if entry.gone:  # looked at after counting: withdraw either stops us or sees us
            entry.pending -= 1
            return None, []
        result, *others = await self._book.channel.ask(deadline, *requests)
        if isinstance(result, Failure):
            known = result.applied is False or (
                no_space(result) and await self._book.taken_back(entry, deadline)
            )
            if not known:
                return result, others
            entry.pending -= 1
            return Failure(result.code, result.text, applied=False), others
        answer = TxnAnswer.read(result)
        if not answer.revision or not answer.answers:  # etcd always says when, and what it did
            raise Garbled("a transaction says nothing of what it did")
        if answer.succeeded:
            entry.revision = answer.revision
        entry.pending -= 1
        return answer, others

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
            looked = await self._book.look(entry, deadline)
            if isinstance(looked, Failure):
                return Unknown(looked.text)
            if looked is None:
                entry.revision = 0
                return Unknown("the key was deleted meanwhile")
            if looked.blocker is None:
                return self._book.grant(entry, session, sent)
            entry.blocker = looked.blocker
            return _busy(looked.first)
        ahead = line.ahead(entry, answer, 2)
        if ahead.blocker is not None or queue:
            return _busy(ahead.first)
        # There is room on a semaphore that has others.
        value = self._book.values.write(entry.claim)
        request = line.retry(entry, value, answer.revision)
        sent = self._port.now()
        again, _ = await self._put(entry, deadline, (wire.TXN, request))
        if isinstance(again, Failure):
            if again.applied is None:
                return Unknown(again.text)
            raise refusal(again)
        if again is None or entry.gone or session.dead or self._book.buried(entry.claim):
            return Buried()
        if not again.succeeded:
            return await self._second(entry, session, again, queue, sent, deadline)
        return self._book.grant(entry, session, sent)

    # -- waiting ----------------------------------------------------------------------------------

    async def wait(self, claim: Claim, deadline: float) -> Grant | None:
        port = self._port
        entry = self._book.entries.get(claim.owner)
        if entry is None or entry.gone:  # withdrawn under our feet; the next attempt finds out
            await port.sleep(LITTLE)
            return None
        session = entry.session
        vain = 0  # looks that found what was known
        while session is not None and not entry.gone and self._book.sessions.alive(session):
            blocker, entry.blocker = entry.blocker, None  # who comes back without it looks
            if blocker is None:
                looked = await self._look(entry, session, deadline)
            else:
                looked = await self._blocked(entry, session, blocker, deadline)
            if looked is None or isinstance(looked, Grant):
                return looked
            vain = vain + 1 if blocker is not None and looked.same(blocker) else 0
            if vain:  # nobody can watch for us, as it seems: do not ask all the time
                await port.sleep(pause(vain, port.random(), deadline - port.now()))
            entry.blocker = looked
        return None

    async def _look(
        self, entry: Entry, session: Session, deadline: float
    ) -> Grant | Blocker | None:
        """Whether it holds, or what is in the way; None: the next attempt must find out."""
        sent = self._port.now()
        limit = min(deadline, sent + LOOK)
        if entry.gone or sent >= deadline or not self._book.sessions.alive(session):
            return None
        looked = await self._book.look(entry, limit)
        if _withdrawn(entry):
            return None
        if isinstance(looked, Failure):
            self._hub.suspect()
            return None
        if looked is None:  # our key was deleted: the next attempt stands in line anew
            entry.revision = 0
            return None
        if looked.blocker is not None:
            return looked.blocker
        if entry.claim.fixed and not await self._book.sessions.beat(session, limit):
            return None
        return self._book.grant(entry, session, sent)

    async def _blocked(
        self, entry: Entry, session: Session, blocker: Blocker, deadline: float
    ) -> Grant | Blocker | None:
        """Until what is in the way has gone, or may have; what is found then."""
        entry.event.clear()
        if entry.gone or session.dead:  # said before we cleared it
            return None
        watch = _watch(entry, blocker)
        try:
            self._hub.add(watch)
            while await self._called(entry, session, deadline):
                behind, watch.behind = watch.behind, False
                entry.event.clear()  # what is said from now on is worth another look
                if behind and await self._book.is_before(entry, blocker, deadline):
                    continue
                looked = await self._look(entry, session, deadline)
                if not (behind and isinstance(looked, Blocker) and looked.same(blocker)):
                    return looked
        finally:
            self._hub.remove(watch)
        return None

    async def _called(self, entry: Entry, session: Session, deadline: float) -> bool:
        """Until it is worth a look (True), or the next attempt must find out."""
        port = self._port
        while not await entry.event.wait(min(deadline, session.beat_at)):
            now = port.now()
            if now >= deadline:
                return False
            if now >= session.beat_at:
                kept = await self._book.sessions.beat(session, min(deadline, now + session.ttl / 3))
                if not kept:
                    self._hub.suspect()
                    return False
        return not entry.gone


def _watch(entry: Entry, blocker: Blocker) -> Watch:
    since, event = blocker.revision + 1, entry.event
    if blocker.key:
        return Watch(blocker.key, since, lambda _: event.set(), prompt=True)
    missing, mine, name = blocker.missing, entry.revision, entry.line

    def count(gone: list[KeyValue] | None) -> None:
        nonlocal missing
        for kv in gone or ():
            if kv.created < mine:
                missing -= lineman(kv.key[len(name) :]).permits
        if gone is None or missing <= 0:
            event.set()

    return Watch(name, since, count, end=wire.after(name), before=True, prompt=True)


def _withdrawn(entry: Entry) -> bool:
    """A look at what another thread may have changed meanwhile."""
    return entry.gone


def _busy(first: KeyValue | None) -> Busy:
    if first is None:
        return Busy()
    info = described(first.value).info
    return Busy(shown(info) if info else "")
