"""The ground of connection-bound locks: records, sessions, and how a session is surely ended.

Contract: a record is a claim, from before it is asked for until nothing of it is left; its session
is used under its gate. Partners: `bound.py` and `holding.py`, which are built on this.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from holdfast.backends.common import Tombstones
from holdfast.backends.sql.dialect import Connect, Driver
from holdfast.backends.sql.gate import Gate
from holdfast.backends.sql.pool import Pool
from holdfast.backends.sql.session import Gone, Refused, Result, Session
from holdfast.backends.sql.speech import Speech
from holdfast.core.backend import Signals
from holdfast.core.backoff import pause
from holdfast.core.port import NoThread, Port
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import Claim, Grant

__all__ = ["Ground", "Record"]

NAMES = 1000
"""So many names that were busy are remembered."""

SOON = 0.002
"""Seconds after which the server is asked again, first, whether a session has ended."""


class Record:
    """One claim, from before it is asked for until nothing of it is left."""

    __slots__ = (
        "asked", "attended", "claim", "fence", "gate", "held", "leaving", "pinged", "results",
        "session", "term", "until", "withdrawn",
    )  # fmt: skip

    def __init__(self, claim: Claim, port: Port) -> None:
        self.claim = claim
        self.gate = Gate(port)
        self.session: Session | None = None
        self.held = False
        self.withdrawn = False
        self.fence: int | None = None
        self.until = 0.0  # until when its holder may believe in it
        self.term = port.now() + claim.ttl  # then the sitter ends it, unless somebody attends
        self.attended = 0
        self.asked = 0.0  # when the wait that is under way was asked for
        self.results: list[Result] = []  # what it has brought
        self.pinged = 0.0  # when the renewal that is under way was asked for, if one is
        self.leaving = 0.0  # the same of the release


class Ground:
    def __init__(self, driver: Driver, speech: Speech, limit: int) -> None:
        self._driver = driver
        self._speech = speech
        self._limit = limit

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port
        self._signals = signals
        connect = self._greeted(self._driver.connector(port.asynchronous))
        where = self._driver.where
        self._pool = Pool(port, connect, self._limit, where)
        self._spare = Pool(port, connect, 2, where)  # what ends other sessions is never in line
        self._records: dict[str, Record] = {}
        self._graves = Tombstones()
        self._warm: OrderedDict[str, float] = OrderedDict()
        self._incarnation = port.incarnation()

    def _greeted(self, connect: Connect) -> Connect:
        async def greeted(deadline: float) -> Session:
            session = await connect(deadline)
            try:
                await self._speech.greeting(session, deadline)
            except BaseException:
                session.close()
                raise
            return session

        return greeted

    async def create(self, session: Session, deadline: float) -> None:
        """Make what tables and sequences are needed; others may do the same just now."""
        for text in self._speech.schema:
            for last in (False, False, True):
                try:
                    await session.run(text, (), deadline)
                    break
                except Refused as error:
                    if last:
                        raise Misconfigured(
                            f"{self._driver.where} has not what this strategy needs, and refuses "
                            f"to make it: {error}. `holdfast schema URL` prints it for somebody "
                            "who may"
                        ) from None

    # -- small things -----------------------------------------------------------------------------

    def _grant(self, record: Record) -> Grant:
        return Grant(record.claim, record.until, record.fence, token=record)

    def _may_hold(self, record: Record) -> bool:
        """Whether a wait that was refused has locked before: a session's lock outlives the
        statement behind it that failed."""
        return not self._speech.undo and len(record.results) > self._speech.early

    def _remember(self, name: str) -> None:
        self._warm[name] = self._port.now()
        self._warm.move_to_end(name)
        if len(self._warm) > NAMES:
            self._warm.popitem(last=False)

    def _unattended(self, record: Record) -> None:
        with self._port.mutex():
            record.attended -= 1
            if not record.held:
                record.term = self._port.now() + record.claim.ttl
        if record.session is not None:
            self._expect(record.term)

    def _let_go(self, record: Record) -> None:
        """The session is not this claim's any more: it is in order, or closed."""
        with self._port.mutex():
            session, record.session = record.session, None
        record.pinged = record.leaving = 0.0
        if session is not None:
            if session.awaited or session.spent:
                session.close()
            self._pool.give(session)

    def _doomed(self, record: Record, session: Session) -> bool:
        """Whether this session is still this claim's; then nobody has it afterwards. Who ends a
        session without its gate asks first: who was in there may have left meanwhile, and another
        claim may hold its lock by that session."""
        with self._port.mutex():
            if record.session is not session:
                return False
            session.spent = True
            return True

    def _drop(self, record: Record) -> None:
        """Nothing of this claim is left."""
        record.held = False
        record.withdrawn = True
        self._records.pop(record.claim.owner, None)
        self._let_go(record)

    async def _ended(self, session: Session, deadline: float) -> bool:
        """Whether the server has nothing of this session any more; makes it so."""
        session.close()
        if not session.number:
            return True
        try:
            spare = await self._spare.take(deadline)
        except Unavailable:
            return False
        try:
            looks = 0
            while found := (await spare.run(*self._speech.kill(session), deadline)).rows:
                finish = self._speech.finish(found[0][0])
                if finish is not None:
                    try:
                        await spare.run(*finish, deadline)
                    except Refused:  # it has gone meanwhile
                        pass
                looks += 1
                again = pause(looks, self._port.random(), math.inf, first=SOON, longest=0.05)
                if self._port.now() + again >= deadline:
                    return False
                await self._port.sleep(again)
            return True
        except (Gone, Refused):
            return False
        finally:
            self._spare.give(spare)

    def _unwatched(self) -> NoThread | None:
        """Why there will be no sitter, which ends what is over and notices who has lost a lock."""
        raise NotImplementedError

    def _expect(self, term: float) -> None:
        """The sitter must look at this moment."""
        raise NotImplementedError
