"""A step: what several rows must agree about, in one short transaction that locks the name's row.

Contract: two round trips whatever the line's length: lock and read; write, call and commit. What is
decided between them is decided by pure rules (`rules.py`). All changes of a line are made here, so
they happen one after another; renewals and heartbeats, which are single statements, only ever
lengthen what is alive, and who is dropped as dead is looked at again while it is dropped.

Hazards: a process that is stopped between the two round trips would block the name. So the server
ends sessions that do nothing inside a transaction (`Dialect.setup`). A session that was interrupted
inside one is closed and never used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.backends.sql.desk import Desk, Moved
from holdfast.backends.sql.rules import Entry, Line
from holdfast.backends.sql.session import Gone, Session, Statement
from holdfast.backends.sql.words import BEHIND, HOLDER, Words
from holdfast.types import Unknown

__all__ = ["Steps"]

T = TypeVar("T")

COMMIT: Statement = ("COMMIT", ())
ROLLBACK: Statement = ("ROLLBACK", ())


class Steps:
    def __init__(
        self,
        desk: Desk,
        words: Words,
        window: int,
        handed_over: Callable[[bytes, Sequence[Entry], bool], None],
    ) -> None:
        self._desk = desk
        self._words = words
        self._window = window
        self._notify = desk.dialect.notify
        # Told who was let in, and whether that is certain, where the database calls nobody.
        self._handed_over = handed_over

    async def step(
        self,
        name: bytes,
        me: bytes,
        before: Callable[[Line], None],
        after: Callable[[Line], T],
        deadline: float,
        *,
        make: bool = True,
    ) -> T | Unknown | None:
        """Have the line changed by `before`, advance it, and answer what `after` says. Without
        `make`, None if there is no such line. Unknown: the commit was sent and not answered."""

        async def work(session: Session) -> T | Unknown | None:
            while True:
                answer = await self._once(session, name, me, before, after, deadline)
                if not isinstance(answer, _NoLine):
                    return answer
                if not make:
                    return None
                await session.run(self._words.make, (name,), deadline)

        return await self._desk.transact(work, deadline)

    async def _once(
        self,
        session: Session,
        name: bytes,
        me: bytes,
        before: Callable[[Line], None],
        after: Callable[[Line], T],
        deadline: float,
    ) -> T | Unknown | _NoLine:
        words = self._words
        reading = ((words.lock, (name,)), (words.line, (name, name, name, me)))
        begun = await session.batch((*self._desk.opening(session), *reading), deadline)
        found, claims = begun[-2:]
        if not found.rows:
            await session.run(*ROLLBACK, deadline)
            return _NoLine()
        line = Line(found.rows[0], claims.rows, me)
        before(line)
        last = max((waiter.place for waiter in line.waiters), default=0)
        while not line.advance(self._window):
            more = (await session.run(words.behind, (name, last), deadline)).rows
            line.complete = len(more) < BEHIND
            line.read_on(Entry(*row) for row in more)
            last = more[-1][1] if more else last
        answer = after(line)
        line.finish()
        if line.dead or line.reaped:
            await self._drop(session, line, deadline)
        writes = self._writes(name, line)
        if line.sweep:
            # Behind all the others: what they refresh, or take out of the line, has not expired.
            writes.append((words.drop_all, (name, line.now)))
        if not writes and not line.dead and not line.reaped:
            await session.run(*ROLLBACK, deadline)
            return answer
        done = False
        try:
            results = await session.batch((*writes, COMMIT), deadline)
            done = True
        except Gone as error:
            if not error.sent:
                raise
            return Unknown(f"the commit was not answered: {error}")
        finally:
            if line.granted and not self._notify:
                self._handed_over(name, line.granted, done)
        for (text, _), result in zip(writes, results, strict=False):
            if text is words.enter and line.mine is not None and line.mine in line.added:
                line.mine.place = words.number(result) or 0
        return answer

    async def _drop(self, session: Session, line: Line, deadline: float) -> None:
        """Who expired or is to go, if it still is so: a renewal may have come between."""
        words = self._words
        drops = [(words.drop, (entry.place, line.now)) for entry in line.dead]
        drops.extend((words.reap, (entry.place, seen)) for entry, seen in line.reaped)
        results = await session.batch(drops, deadline)
        if any(result.changed != 1 for result in results):
            raise Moved

    def _writes(self, name: bytes, line: Line) -> list[Statement]:
        words = self._words
        writes: list[Statement] = [(words.leave, (entry.place,)) for entry in line.left]
        for entry in line.granted:
            if entry.mode == 0:
                writes.append((words.leave, (entry.place,)))
            else:
                writes.append((words.hold, (entry.since, entry.expires, entry.fence, entry.place)))
        for e in line.added:
            if e.kind == HOLDER and e.mode == 0:
                continue
            writes.append(
                (words.enter,
                 (name, e.owner, e.kind, e.mode, e.permits, e.most, e.ttl, e.patience, e.since,
                  e.expires, e.look_at, e.fence, e.client, e.info))
            )  # fmt: skip
        writes.extend((words.lengthen, (e.expires, e.place)) for e in line.longer)
        if line.looked is not None and line.looked is line.mine and line.looked not in line.added:
            looked = line.looked
            writes.append((words.stay, (looked.expires, looked.look_at, looked.place)))
        if line.called is not None:
            writes.append((words.look_at, (line.called.look_at, line.called.place)))
        if line.changed:
            alone = line.alone
            owner, expires, since, ttl, info = (
                (b"", 0, line.now, 0, b"")
                if alone is None
                else (alone.owner, alone.expires, alone.since, alone.ttl, alone.info)
            )
            flag = int(line.flagged)
            writes.append(
                (words.write, (line.version, owner, expires, since, ttl, flag, info, name))
            )
        if self._notify:
            calls = [(entry, entry.call) for entry in line.granted]
            if line.called is not None:
                calls.append((line.called, str(line.called.place)))
            for entry, call in calls:
                writes.append((self._notify, (entry.client.decode(errors="replace"), call)))
        return writes


class _NoLine:
    """There is no such row."""
