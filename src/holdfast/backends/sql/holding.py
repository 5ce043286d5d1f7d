"""Keeping a connection-bound lock, giving it up, ending what is over: the other half of `bound`.

Laws kept here: 3 (a withdrawal is confirmed by the session's own answer, or by the server's word
that the session is gone), 5 (the sitter looks at every held connection once a second and tells who
lost theirs; what nobody renews is ended at its term) and 6 (all renewals of a batch are sent before
the first answer is waited for; one without an answer is not sent again, it is waited for again).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from holdfast.backends.sql.bound import GRACE, Bound
from holdfast.backends.sql.dialect import Driver
from holdfast.backends.sql.ground import Record
from holdfast.backends.sql.session import Gone, Refused, Session, Trouble
from holdfast.backends.sql.speech import Speech
from holdfast.core.backend import Signals
from holdfast.core.lease import DRIFT, valid_until
from holdfast.core.port import NoThread, Port, Task, why_not
from holdfast.errors import HoldfastError
from holdfast.types import AlreadyLost, Claim, Grant, Lost, Released, Renewed, Unknown

__all__ = ["Holding"]

log = logging.getLogger("holdfast")

NOT_OURS = "its connection has ended, or it was released"

PATIENCE = 2.0
"""Seconds for which the answer to a release is waited for, before the connection is ended."""

TICK = 1.0
"""Seconds between two looks at the connections of held locks: the keep-alive interval, as far as
the network tells of a death."""


class Holding(Bound):
    def __init__(self, driver: Driver, speech: Speech, limit: int) -> None:
        super().__init__(driver, speech, limit)
        self._sitter: Task | None = None

    def open(self, port: Port, signals: Signals) -> None:
        super().open(port, signals)
        self._wake = port.event()
        self._looks_at = math.inf
        self._closing = False

    # -- giving up --------------------------------------------------------------------------------

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        port = self._port
        with port.mutex():
            now = port.now()
            if tombstone:
                self._graves.bury(claim, now)
            record = self._records.get(claim.owner)
            if record is None:
                return Released()
            record.withdrawn = True
            record.held = False
        return await self._remove(record, deadline)

    async def _remove(self, record: Record, deadline: float) -> Released | Unknown:
        session = record.session
        if session is None and record.gate.try_enter():
            self._drop(record)
            record.gate.leave()
            return Released()
        if (
            record.gate.taken  # somebody waits in it just now
            and session is not None
            and session.awaited
            and not record.leaving  # it is being given up already
            and self._doomed(record, session)
            and not await self._cancelled(session, deadline)
        ):
            session.cut()
        if not await record.gate.enter(min(deadline, self._port.now() + GRACE)):
            # Stuck, or dropped by an interrupt: the server's word is enough.
            if session is None:
                return Unknown("a connection is being made for this claim")
            if not self._doomed(record, session):
                return Unknown("somebody else has just given it up")
            session.cut()
            return await self._killed(record, session, deadline)
        try:
            session = record.session
            if session is None:
                self._drop(record)
                return Released()
            try:
                if await self._freed(record, session, deadline) is not None:
                    self._drop(record)
                    return Released()
            except Trouble:
                pass
            if session.awaited and self._port.now() < record.leaving + PATIENCE:
                return Unknown("the server has not answered yet")
            return await self._killed(record, session, deadline)
        finally:
            record.gate.leave()

    async def _killed(
        self, record: Record, session: Session, deadline: float
    ) -> Released | Unknown:
        if not await self._ended(session, deadline):
            return Unknown("the server does not say that the connection is gone")
        self._drop(record)
        return Released()

    async def _cancelled(self, session: Session, deadline: float) -> bool:
        """Have the server stop what this session waits for."""
        try:
            spare = await self._spare.take(deadline)
        except HoldfastError:
            return False
        try:
            await spare.run(*self._speech.cancel(session), deadline)
            return True
        except Trouble:
            return False
        finally:
            self._spare.give(spare)

    async def _freed(self, record: Record, session: Session, deadline: float) -> bool | None:
        """Unlock by the session's own word: whether it was locked. None: it cannot say."""
        speech = self._speech
        if session.awaited and not record.pinged and not record.leaving:
            # In line. Cancelled, or granted in the same moment; then the cancellation may still
            # be on its way and would strike whatever is next, so the session is not used again.
            if not await self._cancelled(session, deadline):
                return None
            try:
                # If it struck between two statements it is lost, and the wait goes on: then the
                # session is ended. (Cancelled twice, it could not be used again, either.)
                limit = min(deadline, self._port.now() + GRACE)
                while session.awaited:
                    result = await session.next(limit)
                    if result is None:
                        return None
                    record.results.append(result)
            except Refused as error:
                if error.code not in speech.cancelled or self._may_hold(record):
                    return None
                if speech.undo:
                    await session.batch(speech.undo, deadline)
                return False
            return False if speech.interrupted(record.results) else None
        if not record.leaving:
            while session.awaited:  # a renewal
                if await session.next(deadline) is None:
                    return None
            if not session.usable:
                return None
            record.leaving = self._port.now()
            record.results = []
            await session.begin(speech.release(record.claim), deadline)
        while session.awaited:
            result = await session.next(deadline)
            if result is None:
                return None
            record.results.append(result)
        record.leaving = 0.0
        # None if it was asked before, and whoever asked was cancelled before the answer.
        return speech.released(record.results) if record.results else None

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        claim, port = grant.claim, self._port
        with port.mutex():
            now = port.now()
            if tombstone:
                self._graves.bury(claim, now)
            record = self._records.get(claim.owner)
            if record is None:
                return AlreadyLost(NOT_OURS)
            held = record.held and now < record.term
            record.withdrawn = True
            record.held = False
        if not await record.gate.enter(deadline):
            return Unknown("a renewal of this lease is under way")
        try:
            session = record.session
            if session is None:
                self._drop(record)
                return AlreadyLost(NOT_OURS)
            try:
                if (
                    session.usable
                    and now - session.used > session.lasts / 8
                    and session.looks_dead()
                    and not await self._alive(record, session, deadline)
                ):
                    return AlreadyLost(NOT_OURS)
                freed = await self._freed(record, session, deadline)
            except Gone as error:
                if error.code:  # the server ended it, and says so
                    self._forget(record)
                    return AlreadyLost(f"its connection ended: {error}")
                return Unknown(f"the connection ended: {error}")
            except Refused as error:
                session.close()
                return Unknown(f"the release was refused: {error}")
            if freed is None:
                return Unknown("the server did not answer in time")
            self._drop(record)
            return Released() if held and freed else AlreadyLost(NOT_OURS)
        finally:
            record.gate.leave()

    async def _alive(self, record: Record, session: Session, deadline: float) -> bool:
        """Something arrived that nobody asked for: the end, or a notice."""
        try:
            await session.run(*self._speech.ping, deadline)
            return True
        except Trouble:
            self._forget(record)
            return False

    def _forget(self, record: Record) -> None:
        """It was lost; the sitter makes sure that the server has noticed."""
        if record.session is not None:
            record.session.close()
        record.held = False
        record.withdrawn = True
        record.term = self._port.now()
        self._expect(record.term)

    # -- keeping ----------------------------------------------------------------------------------

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        answers: list[Renewed | Lost | Unknown] = []
        entered: list[tuple[int, Record]] = []
        try:
            for grant in grants:
                record = self._records.get(grant.claim.owner)
                if record is None or not record.held:
                    answers.append(Lost(NOT_OURS))
                    continue
                answers.append(Unknown("the server has not answered yet"))
                # One of many must not keep the others waiting.
                alone = len(grants) == 1
                if record.gate.try_enter() or (alone and await record.gate.enter(deadline)):
                    entered.append((len(answers) - 1, record))
                    if trouble := await self._ping(record, deadline):
                        answers[-1] = trouble
            for index, record in entered:
                if isinstance(answers[index], Unknown):
                    answers[index] = await self._pong(record, grants[index].claim.ttl, deadline)
        finally:
            for _, record in entered:
                record.gate.leave()
        return answers

    async def _ping(self, record: Record, deadline: float) -> Lost | None:
        session = record.session
        if session is None or not record.held:
            return Lost(NOT_OURS)
        if self._port.now() >= record.term:
            return Lost("its time ran out")
        try:
            if not session.awaited:
                record.pinged = self._port.now()
                await session.begin([self._speech.ping], deadline)
        except Trouble as error:
            return self._lost(record, error)
        return None

    async def _pong(self, record: Record, ttl: float, deadline: float) -> Renewed | Lost | Unknown:
        session = record.session
        assert session is not None
        try:
            while session.awaited:
                if await session.next(deadline, lasting=True) is None:
                    return Unknown("the server has not answered yet")
        except Trouble as error:
            return self._lost(record, error)
        sent, record.pinged = record.pinged, 0.0
        until = valid_until(sent, ttl)
        record.until = max(record.until, until)
        record.term = max(record.term, until + ttl * DRIFT)
        return Renewed(until)

    def _lost(self, record: Record, error: Trouble) -> Lost:
        """Called with the gate in hand."""
        self._forget(record)
        return Lost(f"its connection ended: {error}")

    # -- the sitter -------------------------------------------------------------------------------

    def _unwatched(self) -> NoThread | None:
        """Why nobody will look after connections; with the mutex in hand. When the interpreter
        exits nobody need to: they end with it."""
        if self._closing or (self._sitter is not None and self._sitter.alive):
            return None
        self._sitter = self._port.task(self._sit, self._nothing, "holdfast-sitter")
        trouble = why_not(self._sitter.start)
        return None if trouble is None or trouble.exiting else trouble

    def _expect(self, term: float) -> None:
        if term < self._looks_at or self._sitter is None or not self._sitter.alive:
            with self._port.mutex():
                self._unwatched()  # it was there when the claim was begun, and goes on for ever
            self._wake.set()

    async def _nothing(self) -> None:
        pass

    async def _sit(self) -> None:
        port = self._port
        while True:
            try:
                await self._round()
            except Exception:
                log.exception("looking after connections met an unexpected error and goes on")
            now = port.now()
            terms = [record.term for record in list(self._records.values())]
            self._looks_at = min(now + TICK, *terms) if terms else math.inf
            if self._closing:
                return
            # From here on, `_expect` sees `_looks_at` and wakes us if it must.
            if any(record.term < self._looks_at for record in list(self._records.values())):
                continue
            limit = None if self._looks_at == math.inf else max(self._looks_at, now + 0.01)
            await self._wake.wait(limit)
            self._wake.clear()

    async def _round(self) -> None:
        now = self._port.now()
        for record in list(self._records.values()):
            if self._closing:
                return
            if record.attended:
                continue
            session = record.session
            if now >= record.term:
                with self._port.mutex():
                    if record.attended or now < record.term:
                        continue
                    record.withdrawn = True
                    record.held = False
                if isinstance(await self._remove(record, self._port.now() + TICK), Unknown):
                    record.term = self._port.now() + TICK
            elif record.held and session is not None and session.usable and session.looks_dead():
                await self._examine(record)
        await self._tidy()

    async def _tidy(self) -> None:
        """Whatever else is to be done now and then."""

    async def _examine(self, record: Record) -> None:
        """Something arrived that nobody asked for: the end, or a notice."""
        if not record.gate.try_enter():
            return
        try:
            lost = await self._ping(record, self._port.now() + TICK)
            answer = lost or await self._pong(record, record.claim.ttl, self._port.now() + TICK)
        finally:
            record.gate.leave()
        if isinstance(answer, Lost):
            self._signals.lost(record.claim.owner, answer.reason)

    # -- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._incarnation != self._port.incarnation():  # law 8
            return
        self._closing = True
        self._wake.set()
        if self._sitter is not None:
            await self._sitter.join(self._port.now() + 2 * TICK)
        for record in list(self._records.values()):
            if record.session is not None:
                record.session.close()
            self._drop(record)
        self._pool.close()
        self._spare.close()
        for _ in range(3):  # asyncio closes sockets in its next rounds
            await self._port.sleep(0)
