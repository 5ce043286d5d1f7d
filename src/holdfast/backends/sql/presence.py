"""For the crash detector: links that the database itself lists, and the roll of them.

Contract: `core/presence.py`. A link is a session of its own which bears the client's presence as a
name that ends with the session, whoever or whatever ends it: PostgreSQL's application_name, a named
lock of MySQL (`Sight`, one for each database). Its ping asks the server whether it still bears that
name, is the same session, and is not on a replica: through a pooler that changes servers below us,
or on a server that was demoted, it does not.

A claim's stamp is its expiry, which every renewal raises, whatever the clock does (`words.py`).
Hazard: claims that share are renewed without the lock of their name's row, so one is freed by a
DELETE that compares the stamp once more, under that row's lock; if a renewal was quicker, the line
is read again. Partners: `mysql/presence.py`, `postgres/presence.py`; `rules.py` and `step.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.backends.common import info_of, public_id
from holdfast.backends.sql.desk import Desk
from holdfast.backends.sql.pool import Pool
from holdfast.backends.sql.rules import Line
from holdfast.backends.sql.session import Session, Trouble
from holdfast.backends.sql.sight import Sight
from holdfast.backends.sql.step import Steps
from holdfast.backends.sql.words import Words
from holdfast.core.port import Port
from holdfast.core.presence import KEY, NAME, Look, Suspect
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import Unknown

__all__ = ["SqlLink", "SqlRoll", "appear"]


class SqlLink:
    def __init__(self, session: Session, sight: Sight, name: str, where: str) -> None:
        self._session = session
        self._sight = sight
        self._ping = sight.ping(name)
        self._where = where

    async def ping(self, deadline: float) -> None:
        try:
            rows = (await self._session.run(*self._ping, deadline)).rows
        except Trouble as error:
            raise self._broken(error) from None
        wrong = self._sight.wrong(self._session, rows[0])
        if wrong:
            raise self._broken(wrong)

    async def rest(self, until: float) -> None:
        try:
            await self._session.rest(until)
        except Trouble as error:
            raise self._broken(error) from None

    def _broken(self, why: object) -> Unavailable:
        return Unavailable(f"the link to {self._where} broke: {why}")

    def cut(self) -> None:
        self._session.cut()

    def close(self) -> None:
        self._session.close()


async def appear(
    desk: Desk, port: Port, sight: Sight, presence: str, trusted: bool, deadline: float
) -> SqlLink:
    name = NAME + presence
    session = await Pool(port, desk.connect, 1, desk.where).take(deadline)
    try:
        await sight.show(session, name, trusted, deadline)
        return SqlLink(session, sight, name, desk.where)
    except Trouble as error:
        session.close()
        raise Unavailable(f"{desk.where}: {error}") from None
    except BaseException:
        session.close()
        raise


class SqlRoll:
    def __init__(self, desk: Desk, port: Port, sight: Sight, words: Words, steps: Steps) -> None:
        self._desk = desk
        self._sight = sight
        self._words = words
        self._steps = steps
        self._pool = Pool(port, desk.connect, 1, desk.where)
        self._session: Session | None = None
        self._connected = 0
        self._known: list[str] = []
        self.complete = sight.everybody

    # -- looking ----------------------------------------------------------------------------------

    async def look(self, deadline: float) -> Look:
        known = self._known
        try:
            if self._session is None:
                self._connected += 1
                self._session = await self._pool.take(deadline)
            rows = (await self._session.run(*self._sight.look(known), deadline)).rows
            server, present = self._sight.seen(known, rows)
            if server is None:
                raise Unavailable(f"{self._desk.where}: this is a replica by now")
        except Trouble as error:
            self._disconnect()
            raise Unavailable(f"{self._desk.where}: {error}") from None
        except BaseException:
            self._disconnect()  # whatever it was: the next look stands on another ground
            raise
        return Look((self._connected, server), present)

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._pool.give(session)

    async def close(self) -> None:
        self._disconnect()

    # -- claims -----------------------------------------------------------------------------------

    async def claims(self, present: Collection[str], deadline: float) -> list[Suspect]:
        seen = [presence.encode() for presence in present]
        text = self._words.of_the_absent(self._sight.presence, len(seen))
        values = self._desk.dialect.packed(seen) if seen else ()
        rows = await self._desk.read(text, (*values, *values), deadline)
        found: list[Suspect] = []
        for name, owner, expires, info in rows:
            said = info_of(info)
            if KEY in said and said[KEY] not in present:
                who = owner.decode(errors="replace")
                found.append(
                    Suspect(name.decode(), said[KEY], public_id(who), said, expires, owner)
                )
        self._known = sorted({*present, *(suspect.presence for suspect in found)})
        return found

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        return [await self._free(suspect, deadline) for suspect in suspects]

    async def _free(self, suspect: Suspect, deadline: float) -> bool | None:
        freed = False

        def end(line: Line) -> None:
            nonlocal freed
            freed = line.reap(suspect.token, suspect.stamp)

        try:
            answer = await self._steps.step(
                suspect.name.encode(), b"", end, lambda _: freed, deadline, make=False
            )
        except HoldfastError:
            return None
        return None if isinstance(answer, Unknown) else bool(answer)
