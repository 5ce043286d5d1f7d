"""Sessions: etcd's leases, to which the keys of claims are attached. One for each ttl of a client.

Contract: a session is granted when first needed and lives as long as it is kept alive: by `renew`
for who holds, and by who waits. Its validity is counted from before the last request that extended
it was sent (law 1), by the ttl that etcd granted. One that is gone, or whose time ran out, is dead
for ever: who held by it is told at once, who waited stands in line anew.

Hazard: a request whose answer never came may be applied later, and what it puts would be kept alive
for ever. Its tombstone hangs on the same lease: the two end together, and a put that comes even
later finds no lease. So a session with a tombstone takes no new claims (`taint`), and dies when the
last of its claims has gone; nothing has to be swept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import LeaseAnswer
from holdfast.backends.etcd.channel import Channel, refusal
from holdfast.backends.etcd.errand import Errand
from holdfast.backends.etcd.http2 import NO_ANSWER, Failure
from holdfast.backends.etcd.reading import ask_again
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.backends.etcd.entry import Entry

__all__ = ["Session", "Sessions"]

OLD = 1 / 6
"""A session is kept alive along with an attempt when so much of its ttl has passed."""

BEAT = 1 / 3
"""And by who waits, after so much."""


class Session:
    __slots__ = ("beats", "checked", "dead", "entries", "id", "key", "sent", "ttl", "until")

    def __init__(self, key: int, lease: int, ttl: int, sent: float, port: Port) -> None:
        self.key = key  # the ttl that was asked for
        self.id = lease
        self.ttl = ttl
        self.sent = sent  # when the last answered request for more time was sent
        self.until = valid_until(sent, ttl)
        self.checked = sent  # when all keys of those who hold were last seen to be there
        self.entries: dict[str, Entry] = {}
        self.dead = ""  # why
        self.beats = Errand[bool | None](port)

    def extended(self, sent: float, ttl: int) -> None:
        until = valid_until(sent, ttl)
        if until > self.until:  # answers may overtake one another
            self.sent, self.ttl, self.until = sent, ttl, until

    def old(self, now: float, fixed: bool) -> bool:
        """Whether an attempt should have it extended. Who will not renew needs all of its ttl."""
        return fixed or now - self.sent > self.ttl * OLD

    @property
    def beat_at(self) -> float:
        return self.sent + self.ttl * BEAT


class Sessions:
    def __init__(
        self, channel: Channel, port: Port, signals: Signals, lose: Callable[[Entry], None]
    ) -> None:
        self._channel = channel
        self._lose = lose
        self._port = port
        self._signals = signals
        self._current: dict[int, Session] = {}  # by ttl, for new claims
        self._all: dict[int, Session] = {}
        self._grants: dict[int, Errand[Session | Failure]] = {}

    async def get(self, ttl: float, deadline: float) -> Session:
        """The session for a claim of this ttl. Raises if there is none: nothing was claimed."""
        seconds = max(1, math.ceil(ttl))
        session = self._current.get(seconds)
        if session is not None and self.alive(session):
            return session
        grants = self._grants.setdefault(seconds, Errand(self._port))
        result = await grants.do(lambda: self._grant(seconds, deadline), _settles, deadline)
        if result is None:
            raise Unavailable("etcd did not grant a lease in time")
        if isinstance(result, Failure):
            raise refusal(result)  # at most a lease without keys, which ends by itself
        return result

    async def _grant(self, seconds: int, deadline: float) -> Session | Failure:
        current = self._current.get(seconds)
        if current is not None and self.alive(current):  # somebody did it just before
            return current
        sent = self._port.now()
        (result,) = await self._channel.ask(deadline, (wire.LEASE_GRANT, wire.lease_grant(seconds)))
        if isinstance(result, Failure):
            return result
        answer = LeaseAnswer.read(result)
        session = Session(seconds, answer.id, answer.ttl, sent, self._port)
        for old in list(self._all.values()):
            self.alive(old)  # forgets those whose time ran out
        self._all[session.id] = session
        if self._port.now() < session.until:
            self._current[seconds] = session
        return session

    def alive(self, session: Session) -> bool:
        """Whether it may still be relied on; if its time ran out, that is its end."""
        if not session.dead and self._port.now() >= session.until:
            # Who held by it has noticed by the same clock, and deletes its key.
            self._bury(session, "its etcd lease was not kept alive in time")
            for entry in list(session.entries.values()):
                entry.event.set()
        return not session.dead

    def _bury(self, session: Session, reason: str) -> None:
        session.dead = session.dead or reason
        self._all.pop(session.id, None)
        if self._current.get(session.key) is session:
            self._current.pop(session.key, None)

    def end(self, session: Session, reason: str) -> None:
        """The store says that it is gone, and with it all of its keys."""
        self._bury(session, reason)
        for entry in list(session.entries.values()):
            entry.event.set()
            if entry.held:
                self.lose(entry, reason)

    def lose(self, entry: Entry, reason: str) -> None:
        """Its key is gone although the session lives."""
        self._lose(entry)
        self._signals.lost(entry.claim.owner, reason)

    def taint(self, session: Session) -> None:
        """It has a tombstone: no new claims."""
        if self._current.get(session.key) is session:
            self._current.pop(session.key, None)

    def leave(self, entry: Entry) -> None:
        session = entry.session
        if session is not None:
            session.entries.pop(entry.claim.owner, None)

    def kept(self, session: Session, sent: float, result: bytes | Failure) -> bool | None:
        """What became of a keep-alive: True, False (it is gone), None (not known)."""
        if isinstance(result, Failure):
            return None
        answer = LeaseAnswer.read(result)
        if answer.ttl <= 0:
            self.end(session, "its etcd lease is gone: it expired, or somebody revoked it")
            return False
        session.extended(sent, answer.ttl)
        return self.alive(session)

    async def beat(self, session: Session, deadline: float) -> bool | None:
        """Keep it alive on behalf of all who wait by it: one does it."""
        return await session.beats.do(
            lambda: self._beat(session, deadline), lambda _: True, deadline
        )

    async def _beat(self, session: Session, deadline: float) -> bool | None:
        sent = self._port.now()
        (result,) = await ask_again(
            self._channel,
            self._port,
            deadline,
            (wire.KEEP_ALIVE, wire.lease_id(session.id)),
            apart=True,
        )
        return self.kept(session, sent, result)

    async def close(self, deadline: float) -> None:
        """Revoke them: whatever is still on its way to a key of theirs will find no lease."""
        sessions = [one for one in list(self._all.values()) if self.alive(one)]
        self._all.clear()
        self._current.clear()
        if sessions:
            await self._channel.ask(
                deadline, *((wire.LEASE_REVOKE, wire.lease_id(one.id)) for one in sessions)
            )


def _settles(result: Session | Failure) -> bool:
    """Whether a grant that another one asked for is good for all who waited: not if that one had
    less time."""
    return isinstance(result, Session) or result.code != NO_ANSWER
