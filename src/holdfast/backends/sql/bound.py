"""Locks that live as long as a connection: what `advisory` and `for-update` have in common.

Contract: `core/backend.py`. Each claim has a session of its own from its attempt until its end, so
a process that dies leaves nothing, and nothing that happens to one lock's connection touches
another lock. A connection's death is its lease's loss; it is never connected again.

Laws kept here: 1 (an attempt is dated from before it was sent. Who waited is dated by the server's
clock, read on the same session before and after the wait, and tied to the moment the wait was
asked for; never beyond its arrival. A paused waiter's grant is over when the server has ended its
idle session), 2 and 3 (a session whose exchange got no answer is closed, and ended in the server by
another session: when the server says that it is gone, nothing of it is left and nothing of it will
appear; until then the claim is unknown), 4 (a session is used under its record's gate, by whoever
may: the caller, the keeper, the sitter. `withdraw` does not depend on the gate) and 5 (a record is
found by its owner alone).

Partners: `holding.py`, the other half; `speech.py`, what is said to which database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.sql.ground import Ground, Record
from holdfast.backends.sql.session import Blocked, Conflict, Gone, Refused, Statement, Trouble
from holdfast.backends.sql.speech import Taken, Verdict
from holdfast.core.lease import DRIFT, valid_until
from holdfast.errors import HoldfastError, Misconfigured, Unavailable
from holdfast.types import Buried, Busy, Claim, Grant, Unknown

__all__ = ["SLICE", "Bound"]

SLICE = 30.0
"""Seconds after which the server gives up a wait that it was asked for: it is then asked for again,
and an answer that does not come after it has been lost."""

GRACE = 0.5
"""Seconds that such an answer may be late."""

LINGER = 0.002
"""Seconds for which an attempt that stands in line looks whether it is granted at once, if that is
likely: it tried a moment ago."""

WARM = 1.0
"""Seconds for which a name that was busy is believed to be so: who wants it stands in line without
trying first, which saves a trip."""


class Bound(Ground):
    """Taking a lock."""

    # -- attempt ----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        port = self._port
        with port.mutex():
            if self._graves.cover(claim.owner, port.now()):
                return Buried()
            record = self._records.get(claim.owner)
            if record is None:
                trouble = self._unwatched()
                if trouble is not None:  # nobody would end it in time, or tell of its end
                    raise trouble
                record = self._records[claim.owner] = Record(claim, port)
            elif record.withdrawn:
                return Buried()
            record.attended += 1
        try:
            if not await record.gate.enter(deadline):
                return Unknown("another request of this claim is under way")
            try:
                return await self._ask(record, queue, deadline)
            finally:
                record.gate.leave()
        finally:
            self._unattended(record)

    async def _ask(
        self, record: Record, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        if record.withdrawn:
            return Buried()
        session = record.session
        if record.held and session is not None:
            return self._grant(record)
        if session is not None and not session.usable and not session.awaited:
            # Nobody knows what became of the last request: what made it must be gone first.
            if not await self._ended(session, deadline):
                return Unknown("whether an earlier request took the lock is not known yet")
            self._let_go(record)
            session = None
        if session is None:
            try:
                record.session = await self._pool.take(deadline)
            except HoldfastError:  # nothing was sent
                self._drop(record)
                raise
        try:
            return await self._ask_on(record, queue, deadline)
        except Gone as error:
            if not error.sent:  # it had died in the pool, and nothing of this claim with it
                self._let_go(record)
            return Unknown(f"the connection ended: {error}")
        except Refused as error:
            if record.session is not None:
                record.session.close()  # whatever state it is in
            if isinstance(error, Blocked | Conflict) or error.code in self._speech.cancelled:
                return Unknown(f"the request was interrupted: {error}")
            self._drop(record)
            raise Misconfigured(
                f"{self._driver.where} refuses what this strategy needs: {error}"
            ) from None

    async def _ask_on(self, record: Record, queue: bool, deadline: float) -> Grant | Busy | Unknown:
        session, speech = record.session, self._speech
        assert session is not None
        if session.awaited:
            return await self._look(record, self._port.now(), Busy())
        warm = self._warm.get(record.claim.name, 0.0) > self._port.now() - WARM
        if not (queue and warm):
            try:
                answer = await self._try(record, deadline)
            except Refused as error:
                if error.code not in speech.absent:
                    raise
                answer = await self._try_first(record, deadline)
            if not isinstance(answer, Busy):
                return answer
            if not queue:
                if speech.undo and record.session is not None:
                    await record.session.batch(speech.undo, deadline)
                self._drop(record)
                return answer
            return await self._join(record, speech.undo, LINGER, deadline)
        return await self._join(record, (), 0.0, deadline)

    async def _try_first(self, record: Record, deadline: float) -> Grant | Busy | Unknown:
        """The tables are missing. What was refused may have locked before it was: so that session
        is ended, and another one asks."""
        spare = await self._spare.take(deadline)
        try:
            await self.create(spare, deadline)
        finally:
            self._spare.give(spare)
        assert record.session is not None
        if not await self._ended(record.session, deadline):
            return Unknown("whether an earlier request took the lock is not known yet")
        self._let_go(record)
        record.session = await self._pool.take(deadline)
        return await self._try(record, deadline)

    async def _try(self, record: Record, deadline: float) -> Grant | Busy | Unknown:
        """The uncontended path: one trip."""
        claim, session, speech = record.claim, record.session, self._speech
        assert session is not None
        sent = self._port.now()
        while True:
            first = speech.arrange(session, claim.ttl)
            if first and speech.undo:  # it must not be part of the lock's transaction
                await session.batch(first, deadline)
                first = []
                sent = self._port.now()
            try:
                results = await session.batch([*first, *speech.attempt(claim)], deadline)
            except (Blocked, Conflict):
                if not speech.undo:  # what was refused came after the lock, which stays
                    raise
                results = None
            verdict = Verdict.BUSY if results is None else speech.taken(results[len(first) :])
            if isinstance(verdict, Taken):
                return await self._won(record, verdict, valid_until(sent, claim.ttl), deadline)
            if verdict is Verdict.BUSY:
                self._remember(claim.name)
                return Busy()
            await session.batch([*speech.undo, *speech.missing(claim)], deadline)

    async def _won(
        self, record: Record, taken: Taken, until: float, deadline: float
    ) -> Grant | Unknown:
        """It is ours in the server; the token may still be missing."""
        session, claim = record.session, record.claim
        assert session is not None
        fence = taken.fence
        bump = self._speech.bump(claim)
        if bump is not None and self._port.now() < until:  # else it is over, and nobody's
            # H: whoever holds now must not be outranked by one who held before. So the token comes
            # after the lock, and counts only if the lock's session is alive after the token.
            try:
                fence = await self._bumped(*bump, deadline)
                await session.run(*self._speech.ping, deadline)
            except (Trouble, Unavailable) as error:
                session.close()
                return Unknown(f"the lock did not get its token: {error}")
        record.fence = fence
        record.until = until
        record.term = max(record.term, until + claim.ttl * DRIFT)
        with self._port.mutex():
            if record.withdrawn:
                return Unknown("the claim was given up meanwhile")
            record.held = True
        self._expect(record.term)
        return self._grant(record)

    async def _bumped(self, text: str, values: Any, deadline: float) -> int:
        spare = await self._spare.take(deadline)
        try:
            try:
                result = await spare.run(text, values, deadline)
            except Refused as error:
                if error.code not in self._speech.absent:
                    raise
                await self.create(spare, deadline)
                result = await spare.run(text, values, deadline)
            return self._speech.bumped(result)
        finally:
            self._spare.give(spare)

    # -- the line ---------------------------------------------------------------------------------

    async def _join(
        self, record: Record, undo: Sequence[Statement], linger: float, deadline: float
    ) -> Grant | Busy | Unknown:
        """`undo`: what the attempt before has left to be said."""
        claim, session, speech = record.claim, record.session, self._speech
        assert session is not None
        if first := speech.arrange(session, claim.ttl):
            await session.batch([*undo, *first], deadline)
            undo = ()
        record.asked = self._port.now()
        record.results = []
        await session.begin([*undo, *speech.join(claim)], deadline, early=True)
        for number in range(len(undo) + speech.early):
            result = await session.next(deadline)
            if result is None:
                session.close()
                return Unknown("the server did not answer in time")
            if number >= len(undo):
                record.results.append(result)
        return await self._look(record, self._port.now() + linger, Busy())

    async def _look(self, record: Record, moment: float, busy: Busy) -> Grant | Busy | Unknown:
        """What the wait has brought until that moment."""
        session, speech = record.session, self._speech
        assert session is not None
        try:
            while session.awaited:
                result = await session.next(moment)
                if result is None:
                    if self._port.now() > record.asked + SLICE + GRACE:
                        session.close()
                        return Unknown("the server should have given up this wait by now")
                    self._remember(record.claim.name)
                    return busy
                record.results.append(result)
                moment = max(moment, self._port.now() + GRACE)  # the rest is right behind it
        except (Blocked, Conflict) as error:
            if self._may_hold(record):
                session.close()
                return Unknown(f"the lock did not get its token: {error}")
            return await self._again(record, busy)
        verdict = speech.taken(record.results)
        if isinstance(verdict, Taken):
            arrived = self._port.now()
            until = min(self._dated(record, verdict), valid_until(arrived, record.claim.ttl))
            return await self._won(record, verdict, until, arrived + 4 * GRACE)
        if verdict is Verdict.MISSING:
            deadline = self._port.now() + GRACE
            await session.batch([*speech.undo, *speech.missing(record.claim)], deadline)
            return busy
        return await self._again(record, busy)

    async def _again(self, record: Record, busy: Busy) -> Busy:
        """The server gave up the wait: it will be asked for anew."""
        assert record.session is not None
        if self._speech.undo:
            await record.session.batch(self._speech.undo, self._port.now() + GRACE)
        return busy

    def _dated(self, record: Record, taken: Taken) -> float:
        """The lock was taken so long after the wait was asked for, by the server's own clock."""
        before = record.results[self._speech.early - 1].rows[0][0]
        waited = max(0.0, (taken.moment - before) / 1e6)
        return valid_until(record.asked + waited * (1 - DRIFT), record.claim.ttl)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        port = self._port
        with port.mutex():
            record = self._records.get(claim.owner)
            if record is None or record.withdrawn or record.session is None:
                record = None
            else:
                record.attended += 1
        if record is None:
            await port.sleep(0.01)
            return None
        try:
            if not await record.gate.enter(min(deadline, port.now() + SLICE)):
                return None
            try:
                return await self._wait(record, busy, deadline)
            finally:
                record.gate.leave()
        finally:
            self._unattended(record)

    async def _wait(self, record: Record, busy: Busy, deadline: float) -> Grant | None:
        session = record.session
        if session is None or not session.awaited:
            return None
        try:
            limit = min(deadline, record.asked + SLICE + GRACE)
            answer = await self._look(record, limit, busy)
        except Gone as error:
            if record.withdrawn:
                return None
            raise Unavailable(f"the connection that waited for the lock ended: {error}") from None
        except Refused as error:
            if error.code in self._speech.cancelled:
                return None
            raise Unavailable(f"the wait was refused: {error}") from None
        return answer if isinstance(answer, Grant) else None
