"""The sessions of a client, one for each step of ttl, and the sitter, who ends what is over.

Contract: `session` gives one that is connected, or raises `Unavailable` while nothing has been
sent. The sitter is one task of the port. It deletes the node of every claim whose time has run out
and that nobody renewed or waited for (a fixed lease must not live on with its session; a keeper may
have died), makes the contacts that leases longer than their session need, leaves a server that does
not answer, condemns sessions whose deadline has passed, and closes those nobody uses for a while.

The session's timeout is one and a half times the ttl, so that a lease lasts its whole ttl from a
contact on. Servers limit it (by default to 4 to 40 s): a longer lease is kept by contacts.
Partner: `session.py`.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable

from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.place import Place
from holdfast.backends.zookeeper.session import Record, Session
from holdfast.core.backend import Signals
from holdfast.core.backoff import pause
from holdfast.core.port import Port, Task, why_not
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["Pool"]

log = logging.getLogger("holdfast")

LONGEST_SESSION = 3600.0
STEPS = (1, 1.2, 1.5, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 10)
IDLE = 60.0
"""Seconds after which a session without claims is closed."""

SILENCE = 1.0
"""Seconds without an answer, at least, after which a connection is given up for another."""

PATIENCE = 0.5
"""Seconds that the sitter waits for a node to be deleted before it looks after the others."""

FAREWELL = 1.0
"""Seconds that closing waits for the servers to confirm the end of the sessions."""

ENDED = "the session had no answer from the leader for too long, and was given up"


class Pool:
    def __init__(
        self,
        port: Port,
        signals: Signals,
        place: Place,
        where: str,
        expire: Callable[[Record, float], Awaitable[bool]],
    ) -> None:
        self._port = port
        self._signals = signals
        self._place = place
        self._where = where
        self._expire = expire
        self._current: dict[int, Session] = {}
        self._ending: list[Session] = []  # condemned, and not known to be gone
        self._wake = port.event()
        self._looks_at = math.inf
        self._task: Task | None = None
        self._failures = 0
        self.closed = False

    @staticmethod
    def key_of(ttl: float) -> int:
        """The session's timeout in milliseconds: for a ttl that is as long, or a step longer, so
        that somebody who computes their ttls does not have a thousand sessions."""
        power = 10.0 ** math.floor(math.log10(ttl))
        step = next((s * power for s in STEPS if s * power >= ttl * (1 - 1e-9)), 10 * power)
        return math.ceil(min(1.5 * step, LONGEST_SESSION) * 1000 - 1e-6)

    def ready(self, ttl: float) -> Session | None:
        """The session for this ttl if it can be used at once."""
        session = self._current.get(self.key_of(ttl))
        if session is not None and session.wire.up and session.usable:
            return session
        return None

    def any(self) -> Session | None:
        for session in list(self._current.values()):
            if session.wire.up and session.usable:
                return session
        return None

    async def session(self, ttl: float, deadline: float) -> Session:
        key = self.key_of(ttl)
        while True:
            session = self._open(key)
            if await session.connected(deadline):
                if session.round_trip > ttl:
                    session.condemn("it is too slow for its ttl")  # the next one may be faster
                    raise Unavailable(
                        f"reaching {self._where} takes {session.round_trip:.3f} s: a ttl of "
                        f"{ttl:g} s is too short for this store; use a longer one"
                    )
                return session
            wire = session.wire
            if wire.refusal:
                raise Misconfigured(f"{self._where}: {wire.refusal}")
            if self._port.now() >= deadline or self.closed:
                why = f" ({wire.trouble})" if wire.trouble else ""
                raise Unavailable(f"{self._where} could not be reached in time{why}")

    def _open(self, key: int) -> Session:
        with self._port.mutex():
            session = self._current.get(key)
            if session is not None and session.usable and not session.forsaken:
                return session
            if session is not None:
                session.condemn("nobody relied on it")
                self._retire(session)
            if self.closed:
                raise Unavailable("the client was closed")
            error = why_not(self._hire)
            if error is not None and not error.exiting:
                raise error  # a session that nobody looks after is condemned soon
            session = self._begin(key)
        self.expect(self._port.now() + IDLE)
        return session

    def _begin(self, key: int) -> Session:
        session = Session(self._port, self._signals, self._place, key)
        try:
            session.wire.start()
            self._current[key] = session
        except BaseException:
            session.wire.quit()
            raise
        return session

    def _retire(self, session: Session) -> None:
        if self._current.get(session.key) is session:
            del self._current[session.key]
        if session not in self._ending:
            self._ending.append(session)

    def _forget(self, session: Session) -> None:
        with contextlib.suppress(ValueError):  # another thread was faster
            self._ending.remove(session)

    # -- the sitter -------------------------------------------------------------------------------

    def expect(self, moment: float) -> None:
        """Something will be due then: look no later."""
        if moment < self._looks_at:
            self._looks_at = moment
            self._wake.set()
        if not (self._sits or self.closed) and (error := why_not(self._hire)) is not None:
            log.warning("what runs out ends with its session: %s", error)

    @property
    def _sits(self) -> bool:
        task = self._task
        return task is not None and task.alive

    def _hire(self) -> None:
        with self._port.mutex():
            if not self._sits:
                self._task = self._port.task(self._sit, self._farewell, "holdfast-sitter")
                self._task.start()

    async def _sit(self) -> None:
        try:
            while not self.closed:
                self._wake.clear()
                self._looks_at = math.inf  # whatever is expected from here on is not overlooked
                try:
                    due = await self._look(self._port.now())
                except Exception:
                    log.exception("the sitter met an unexpected error and goes on")
                    due = self._port.now() + 1.0
                self._looks_at = min(self._looks_at, due)
                if self._looks_at == math.inf:
                    await self._wake.wait(None)
                # A suspended host's timers are late: no further than a keeper's tick apart.
                while not self._wake.is_set() and (now := self._port.now()) < self._looks_at:
                    self._tend(now)
                    await self._wake.wait(min(self._looks_at, now + 1.0))
        finally:
            self._looks_at = math.inf

    def _tend(self, now: float) -> None:
        for session in [*self._current.values(), *self._ending]:
            session.tended = now

    async def _look(self, now: float) -> float:
        """Do what is due; when to look again."""
        self._tend(now)
        due = math.inf
        over: list[Record] = []
        for session in [*self._current.values(), *self._ending]:
            due = min(due, self._look_at(session, now, over))
        for record in over:
            self._tend(self._port.now())  # it may be many
            # Other sessions need us too: one that does not answer is enough for a round.
            if not await self._expire(record, self._port.now() + PATIENCE):
                self._failures += 1
                return min(due, now + pause(self._failures, self._port.random(), math.inf))
        self._failures = 0
        return due

    def _look_at(self, session: Session, now: float, over: list[Record]) -> float:
        records = list(session.records.values())
        if not session.usable:
            self._retire(session)
            if session.gone and not records:
                self._forget(session)
                return math.inf
            if not session.over and now >= session.condemned_at + 2 * session.timeout:
                session.wire.quit()  # the server has ended it by itself, or will when we are silent
            over += [r for r in records if not r.attended and (session.gone or now >= r.term)]
            return now + 1.0
        due = self._impatient(session, now)
        if not records:
            if now < session.idle_since + IDLE:
                return min(due, session.idle_since + IDLE)
            if not session.records:
                session.condemn("nobody used it")
                self._retire(session)
            return now + 1.0
        session.idle_since = now
        due = min(due, now + IDLE)
        held = [record for record in records if record.held]
        if held:
            longer = any(session.certain_until(record) < math.inf for record in held)
            # A lease that the last contact vouches for to its end needs no other.
            if now >= session.deadline and (longer or session.doubtful):
                session.condemn(ENDED)
                self._retire(session)
                return now
            if longer or session.doubtful:
                due = min(due, session.deadline)
            if longer:
                due = min(due, self._make_contact(session, now))
        elif session.doubtful:
            # Only waiters: without an answer they must not stand in others' way for ever.
            patience = session.doubtful_since + session.timeout
            if now >= patience:
                session.condemn(ENDED)
                self._retire(session)
                return now
            due = min(due, patience)
        for record in records:
            if record.attended:
                continue
            if now >= record.term:
                over.append(record)
            else:
                due = min(due, record.term)
        return due

    def _impatient(self, session: Session, now: float) -> float:
        """A request without an answer: another server may have one, while the leases last."""
        since = session.wire.unanswered_since()
        if since is None:
            return math.inf
        limit = max(SILENCE, session.timeout / 6)
        if now < since + limit:
            return since + limit
        session.wire.drop()
        return now + limit

    def _make_contact(self, session: Session, now: float) -> float:
        """For leases that last longer than the session vouches for: a contact every quarter of the
        timeout, and again soon if it is not answered; after a third of it there is doubt."""
        ask_at, soon = session.contact + session.timeout / 4, session.timeout / 12
        if now < ask_at:
            return ask_at
        if now >= ask_at + soon and not session.doubtful:
            session.doubt()
        if session.wire.up and now >= session.asked + soon:
            session.asked = now
            session.wire.send((requests.sync(), session.contact_at(now)))
        return min(session.asked, now) + soon

    # -- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        self.closed = True
        self._wake.set()
        deadline = self._port.now() + FAREWELL
        await self._end_all("its client was closed", deadline)
        if self._task is not None:
            await self._task.join(deadline)

    async def _farewell(self) -> None:
        """The event loop ends, and nobody closed the client: a session would live on in its thread,
        which knows nothing of the loop. (With the interpreter the threads end, too; what there is
        of claims the keeper withdraws.)"""
        if not self._port.asynchronous:
            return
        for _ in range(5):  # tasks cancelled together with us, and the keeper, go first
            await self._port.sleep(0)
        await self._end_all("its event loop has ended", self._port.now() + FAREWELL)

    async def _end_all(self, reason: str, deadline: float) -> None:
        for session in list(self._current.values()):
            self._retire(session)
        ending = list(self._ending)
        for session in ending:
            session.condemn(reason)
        for session in ending:
            await session.ended_event.wait(deadline)
            session.wire.quit()
            self._forget(session)  # not before: who was interrupted closes again
