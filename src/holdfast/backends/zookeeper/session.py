"""A session: how long the server keeps it, who relies on it, and what they are told.

Contract: dates and doubts. A claim's node lives as long as its session, and the session as long as
the server hears of it; so a lease is trusted until the *contact* is two thirds of the session's
timeout old. A contact is the send time of an answered write or `sync`, which the leader itself has
seen; never a ping or a read (H: a follower cut from its leader answers these for seconds after the
leader has freed the node). Why two thirds: a follower tells its leader of its clients in the rhythm
of its own pings, and kazoo is silent for a third of the timeout at most, so when the contact was
made the leader's clock for this session was up to a third behind. Assumed: a leader that has lost
its quorum notices that before the others have elected another and that one has ended the session.

While there is no connection, or a contact got no answer, leases are uncertain from a third of the
timeout on. When the deadline passes, the session is condemned: every lease on it is lost at once,
and it is ended as soon as the server can be reached. It is never used again. The same happens when
nobody has tended it for too long: kazoo's thread would keep it for ever, though the event loop that
renews and ends its claims is blocked, or was left (R2).

Order (law 3): requests of one session are executed in the order they were sent. A connection that
is replaced within a session ends: what was sent on it was executed before, or never (the server
closes it when the session is resumed; another server refuses it as moved). So a look that begins
with `sync`, sent after a create, sees that create's node or there will be none; and who condemns a
session and closes it leaves nothing, whatever was still under way.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.place import Place
from holdfast.backends.zookeeper.requests import Request
from holdfast.backends.zookeeper.wire import Reply, Wire
from holdfast.core.backend import Signals
from holdfast.core.lease import DRIFT
from holdfast.core.port import Event, Port
from holdfast.types import Claim

__all__ = ["Look", "Record", "Session"]

FRESH = 0.02
"""The part of a ttl by which a lease that was handed over may be shorter, to save a request."""


UNTENDED = 5.0
"""Seconds without the sitter's tick, at least, after which a session is ended."""


class Record:
    """One claim, from before its node is asked for until the node is known to be gone."""

    __slots__ = (
        "attended",
        "claim",
        "czxid",
        "event",
        "guid",
        "held",
        "look",
        "parent",
        "path",
        "session",
        "term",
        "watching",
        "withdrawn",
    )

    def __init__(self, claim: Claim, guid: str, parent: str, session: Session, now: float) -> None:
        self.claim = claim
        self.guid = guid
        self.parent = parent
        self.session = session
        self.path: str | None = None  # None: asked for, and the answer has not come
        self.czxid = 0
        self.held = False
        self.withdrawn = False
        self.attended = 0  # somebody is waiting for it just now, so it cannot run out
        self.term = now + claim.ttl  # then it is deleted, unless it was renewed or waited for
        self.event: Event | None = None  # set when another look is worth it
        self.watching: tuple[str, ...] = ()
        self.look: Look | None = None  # what the line was like when it was last woken

    def nudge(self) -> None:
        if self.event is not None:
            self.event.set()


class Session:
    """One wire, and the claims whose nodes are its own. `key` is the timeout asked for."""

    def __init__(self, port: Port, signals: Signals, place: Place, key: int) -> None:
        self._port = port
        self._signals = signals
        self.key = key
        self.timeout = key / 1000  # what the server granted, as soon as that is known
        self.id = 0
        self.round_trip = 0.0
        self.contact = -math.inf
        self.doubtful = False
        self.doubtful_since = 0.0
        self.condemned = False
        self.condemned_at = math.inf
        self.over = ""  # why it has ended
        self.left = False  # we ended it: what was its until then has been given back
        self.gone_at = math.inf  # from then on the server has nothing of it
        self.ready = port.event()  # there is a connection, or there will be none: look at `over`
        self.ended_event = port.event()
        self.records: dict[str, Record] = {}  # by guid
        self.idle_since = port.now()
        self.tended = port.now()  # the sitter was here
        self._watchers: dict[str, list[Record]] = {}
        self.asked = -math.inf  # when the sitter last asked for a contact
        self._told = -math.inf  # the deadline that long leases were last told
        self.wire = Wire(place, self.timeout, self)

    @property
    def deadline(self) -> float:
        """Until when the server surely keeps the session."""
        return self.contact + self.timeout * 2 / 3 * (1 - DRIFT)

    @property
    def usable(self) -> bool:
        return not self.over and not self.condemned

    @property
    def forsaken(self) -> bool:
        """It has lost its connection, and nobody wants anything of it. Another is made as fast;
        and a server that was set back to older data, or to none, never lets us resume this one."""
        if self.id == 0 or self.wire.up:
            return False
        return all(record.withdrawn for record in list(self.records.values()))

    @property
    def gone(self) -> bool:
        """Whether the server surely has none of its nodes any more."""
        return self._port.now() >= self.gone_at

    def certain_until(self, record: Record) -> float:
        """For a lease that is longer than the session can vouch for now."""
        deadline = self.deadline
        longer = record.term - record.claim.ttl * DRIFT - deadline > 1e-6
        return deadline if longer else math.inf

    def look_by(self, record: Record) -> float:
        """When the sitter has something to do for this claim, at the latest."""
        if record.held and self.certain_until(record) < math.inf:
            return min(record.term, self.contact + self.timeout / 4)
        return record.term

    # -- asking -----------------------------------------------------------------------------------

    def ask(self, *asked: Request, record: Record | None = None) -> list[Reply]:
        """Send them back to back. The last reply can be waited for, and the others are there when
        it is: the server answers in order. With a record, the last but one makes its node."""
        replies = [Reply() for _ in asked]
        if record is not None:
            replies[-2] = _Created(record)
        replies[-1].event = self._port.event()
        self.idle_since = self._port.now()
        self.wire.send(*zip(asked, replies, strict=True))
        return replies

    async def connected(self, deadline: float) -> bool:
        """Wait for a connection, until the deadline or the session's end."""
        if not self.ready.is_set():
            self.wire.hurry()
            await self.ready.wait(deadline)
        return self.ready.is_set() and not self.over

    def heard(self, sent: float) -> None:
        """A write or sync that left at `sent` was answered."""
        if sent <= self.contact:
            return
        self.contact = sent
        if self.doubtful:
            self.doubtful = False
            self._tell()
        elif self.deadline - self._told > self.timeout / 20:
            self._tell()

    def contact_at(self, sent: float) -> Reply:
        """For a sync that nobody waits for."""
        return _Contact(self, sent)

    def doubt(self) -> None:
        """No connection, or no answer: leases are trusted for a third of the timeout only."""
        if not self.doubtful:
            self.doubtful_since = self._port.now()
        self.doubtful = True
        self._tell()

    def _tell(self) -> None:
        self._told = self.deadline
        doubted = self.contact + self.timeout / 3 if self.doubtful else math.inf
        for record in list(self.records.values()):
            if record.held:
                certain = min(doubted, self.certain_until(record))
                self._signals.certain_until(record.claim.owner, certain)

    def condemn(self, reason: str) -> None:
        if self.condemned or self.over:
            return
        self.condemned = True
        self.condemned_at = self._port.now()
        self._lose(reason)
        self.wire.leave()

    def _lose(self, reason: str) -> None:
        for record in list(self.records.values()):
            if record.held:
                self._signals.lost(record.claim.owner, reason)
            record.nudge()

    # -- watching ---------------------------------------------------------------------------------

    def watch(self, record: Record, paths: tuple[str, ...]) -> None:
        """Nudge this record when one of the nodes changes; the requests that make the server tell
        are the caller's."""
        with self._port.mutex():
            self.unwatch(record)
            record.watching = paths
            for path in paths:
                self._watchers.setdefault(path, []).append(record)

    def unwatch(self, record: Record) -> None:
        if not record.watching:
            return
        with self._port.mutex():  # two at once could take a list for empty that is just filled
            paths, record.watching = record.watching, ()
            for path in paths:
                others = self._watchers.get(path, [])
                if record in others:
                    others.remove(record)
                if not others:
                    self._watchers.pop(path, None)

    # -- what the wire says, in its thread --------------------------------------------------------

    def on_connected(self, session_id: int, timeout: float, sent: float) -> None:
        self.id, self.timeout = session_id, timeout
        self.round_trip = self._port.now() - sent
        self.ready.set()
        # Resuming a session is settled by the leader, so this is a contact. The sync is another
        # one, and the first that leases wait for.
        self.contact = max(self.contact, sent)
        if self.doubtful and not self.condemned:
            self.wire.send((requests.sync(), _Contact(self, self._port.now())))

    def on_suspended(self) -> None:
        self.ready.clear()
        self.doubt()
        self.on_watched(None)

    def on_ended(self, reason: str, gone: bool, left: bool) -> None:
        self.left = left
        self.over = reason
        now = self._port.now()
        # A server that did not say so keeps it for its timeout, rounded up to its ticks.
        self.gone_at = now if gone else now + 1.5 * self.timeout
        self._lose(reason)
        self.on_watched(None)
        self.ready.set()
        self.ended_event.set()

    def on_beat(self) -> None:
        if self._port.now() > self.tended + max(self.timeout, UNTENDED):
            self.condemn("its event loop, or the thread that looks after it, is blocked or gone")

    def on_watched(self, path: str | None) -> None:
        if path is None:
            for record in list(self.records.values()):
                record.nudge()
        elif records := list(self._watchers.get(path, ())):
            self._look(records)

    def _look(self, records: list[Record]) -> None:
        """The look that is due is sent from here, one for all who wait for this node: nobody has to
        be woken to ask, and they wake when the answer is there."""
        parent = records[0].parent
        if not parent:  # they wait for a cell
            for record in records:
                record.nudge()
            return
        look = Look(self, records, self._port.now())
        asked: list[tuple[Request, Reply]] = [(requests.get_children(parent), look)]
        if look.synced is not None:
            asked.insert(0, (requests.sync(parent), look.synced))
        self.wire.send(*asked)


class Look(Reply):
    """A list of the line for claims that are woken. If the leader was heard of just now it is dated
    from that contact, and no sync is needed: it is asked of the server that told of the change."""

    __slots__ = ("_records", "_session", "dated", "synced")

    def __init__(self, session: Session, records: list[Record], now: float) -> None:
        super().__init__()
        self._session = session
        self._records = records
        shortest = min(record.claim.ttl for record in records)
        # Nor may it be older than those that keep a lease longer than its session: while we only
        # waited nobody made any, and the lease would be over when it is granted.
        fresh = now - session.contact < min(FRESH * shortest, session.timeout / 4)
        self.synced = None if fresh else Reply()
        self.dated = session.contact if fresh else now

    def _answered(self) -> None:
        if self.synced is not None:
            self.error = self.error or self.synced.error
            if self.error is None:
                self._session.heard(self.dated)
        super()._answered()
        for record in self._records:
            record.look = self
            record.nudge()


class _Created(Reply):
    """A node's making, which may be answered when nobody waits for it any more."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def set(self, value: Any = None) -> None:
        record = self._record
        path, stat = value
        record.czxid = stat.czxid
        record.path = path
        if record.withdrawn:  # whoever withdrew it may not have known the path
            record.session.wire.send((requests.delete(path), Reply()))
        super().set(value)


class _Contact(Reply):
    """A sync for which nobody waits."""

    __slots__ = ("_sent", "_session")

    def __init__(self, session: Session, sent: float) -> None:
        super().__init__()
        self._session = session
        self._sent = sent

    def set(self, value: Any = None) -> None:
        super().set(value)
        self._session.heard(self._sent)
