"""The rules: lines of claims in SQL, and `advance`.

Contract: `LocalStore`. Every method is one request: `Site.run` has let it in, alone. What is read
and what is done about it is one transaction, or a single statement.

Laws kept here: 3 (idempotent per owner; looking refreshes and never creates; withdraw tombstones),
6 (a renewal never shortens; one message for one hand-over), 7 (tokens grow).

Who waits depends on processes: the first in line on those of all holders, everybody else on that of
who stands before it. So when a process dies somebody who needs to know is called, and no crowd. Who
becomes first usually depends on the right process already (whoever stood before it holds now); if
not, it is told to look.
Partners: `lines.py`, its words; `cells.py` and `overview.py`, the rest of the store; `../local.py`,
the client's half; `memory/store.py`, the same rules in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from holdfast.backends.common import holder_of
from holdfast.backends.local import LATER, Enlist, Gone, Held, InLine
from holdfast.backends.sqlite import schema, sound
from holdfast.backends.sqlite.cells import Cells
from holdfast.backends.sqlite.lines import (
    DEPEND,
    FIRST,
    FREE,
    GIVE,
    HOLDERS,
    LAST,
    RENEW,
    TAKE,
    Line,
    Waiter,
    depends_on,
    joined,
)
from holdfast.backends.sqlite.overview import overview, unsound
from holdfast.errors import Misconfigured
from holdfast.types import Claim, LockInfo, Mode

__all__ = ["Store"]

MANY = 100
"""How far the line is counted for a message."""

SWEEP = 60.0
"""Every so many seconds of use, what is over and was never asked for again is looked for."""

PERMITS = Mode.PERMITS  # an Enum's attributes are slow


class Store(Cells):
    # -- claims -----------------------------------------------------------------------------------

    def attempt(self, claim: Claim, enlist: Enlist | None) -> Held | InLine | Gone:
        """Take it if it may be had now; else stand in line, if there is somebody to `enlist`."""
        now = schema.now()
        if self.tombstones.cover(claim.owner, now):
            return Gone("this claim was withdrawn")
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP
            self.sweep()
        site = self.site
        epoch, execute = site.epoch, site.cursor.execute
        name, mode = claim.name.encode(), claim.mode
        execute("BEGIN IMMEDIATE")
        ((word, reserved, busy),) = execute(FREE, (name, name)).fetchall() or [("", 0, 0)]
        # Only now: a token dated before we were alone in here could be older than another's.
        now = schema.now()
        token = epoch.token(now)
        good = reserved.__class__ is int and token <= reserved  # it may be somebody's text
        if not busy and good and word == epoch.word and epoch.fine:
            # The uncontended path: nobody holds, and nobody waits.
            fence = None if mode is PERMITS else token
            expires = now + claim.ttl
            execute(
                TAKE,
                (name, claim.owner, site.number, mode._value_, claim.permits, now, expires,
                 fence, self.written.of(claim.info)),
            )  # fmt: skip
            execute("COMMIT")
            return _held(expires, fence)
        self.check_epoch(word, reserved)
        answer = self._attempt(claim, name, enlist, now)
        self.end()
        return answer

    def _attempt(
        self, claim: Claim, name: bytes, enlist: Enlist | None, now: float
    ) -> Held | InLine:
        line = self._advance(name, now)
        held = line.held.get(claim.owner)
        if held is not None:  # asking twice is asking once
            self.site.post.forget(claim.owner)
            return _held(*held)
        place = self._place(claim.owner)
        if place is not None:
            if enlist is not None:
                self._refresh(claim, place, now)
            return self._in_line(line, name, claim.owner, place)
        wish = self._wish(claim)
        if line.admits(wish):
            first = self._first(name)
            if first is None or not claim.fair:
                held = self._grant(line, name, wish, now)
                if first is not None:
                    self._tell_first(line, name, first)
                return _held(*held)
        if enlist is None:
            return InLine(holder_of(line.info), None, line.expires + schema.AHEAD)
        behind = self.db.execute(LAST, (name, MANY, name)).fetchone() or (True, 0, None, 0)
        fine, last, before, ahead = behind
        if not fine:
            self._refuse("waiters", name)
        processes, look_at = self._depend(line, claim.owner, before)
        self.db.execute(
            "INSERT INTO waiters VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, last + 1, wish.owner, wish.process, wish.mode, wish.permits, wish.most, wish.ttl,
             now, now + wish.ttl, look_at, processes, wish.info),
        )  # fmt: skip
        self.site.post.expect(claim.owner, enlist(claim))
        return InLine(holder_of(line.info), ahead, look_at + schema.AHEAD)

    def look(self, claim: Claim) -> Held | InLine | Gone:
        """A waiter's heartbeat: refreshes its place, never makes one."""
        name = claim.name.encode()
        now = self.begin()
        place = self._place(claim.owner)
        answer: Held | InLine | Gone
        if place is None:
            answer = self._granted(name, claim.owner, now)
        else:
            self._refresh(claim, place, now)
            line = self._advance(name, now)
            held = line.held.get(claim.owner)
            if held is not None:
                answer = _held(*held)
            else:
                answer = self._in_line(line, name, claim.owner, place)
        if not isinstance(answer, InLine):
            self.site.post.forget(claim.owner)
        self.end()
        return answer

    def _granted(self, name: bytes, owner: str, now: float) -> Held | Gone:
        """Of who left the line. Nothing is moved on: of a thousand who were granted at once, each
        would go through all the others."""
        row = self.db.execute(
            f"SELECT {sound.holder}, expires, fence FROM holders"
            " WHERE name = ? AND owner = ? AND expires > ?", (name, owner, now),
        ).fetchone()  # fmt: skip
        if row is None:
            return Gone("not in line")
        if not row[0]:
            self._refuse("holders", name)
        return _held(*row[1:])

    def renew(self, claims: Sequence[Claim]) -> list[bool]:
        now, number = self.begin(), self.site.number
        rows = [(now + c.ttl, number, c.name.encode(), c.owner, now) for c in claims]
        if self.db.executemany(RENEW, rows).rowcount == len(rows):
            held = [True] * len(rows)
        else:
            held = [self.db.execute(RENEW, row).rowcount == 1 for row in rows]
        self.end()
        return held

    def release(self, claim: Claim, tombstone: bool) -> bool:
        """True if it held until now. The owner is compared and the line moved on in one step."""
        now = schema.now()
        name = claim.name.encode()
        if not tombstone:
            given = self.site.cursor.execute(GIVE, (name, claim.owner, now, name))
            if given.rowcount == 1:
                return True  # and nobody waits
        else:
            self.tombstones.bury(claim, now)
        db, now = self.db, self.begin()
        key = (name, claim.owner)
        gone = "DELETE FROM holders WHERE name = ? AND owner = ?"
        held = db.execute(f"{gone} AND expires > ?", (*key, now)).rowcount == 1
        if not held:
            db.execute(gone, key)
        self._move_on(name, now)
        self.end()
        return held

    def downgrade(self, claim: Claim) -> bool:
        """True if it holds, and is a reader from now on; its token is the last writer's."""
        now, name = self.begin(), claim.name.encode()
        held = self.db.execute(
            "UPDATE holders SET mode = ? WHERE name = ? AND owner = ? AND expires > ?",
            (Mode.SHARED.value, name, claim.owner, now),
        )
        self._move_on(name, now)
        self.end()
        return held.rowcount == 1

    def withdraw(self, claim: Claim, tombstone: bool) -> None:
        """Out of the line, or out of the lock: nothing of this owner stays; nothing comes, either,
        with a tombstone."""
        db, name = self.db, claim.name.encode()
        if tombstone:
            self.tombstones.bury(claim, schema.now())
        now = self.begin()
        self.site.post.forget(claim.owner)
        place = self._place(claim.owner)
        db.execute("DELETE FROM waiters WHERE owner = ?", (claim.owner,))
        db.execute("DELETE FROM holders WHERE name = ? AND owner = ?", (name, claim.owner))
        self._move_on(name, now)
        if place is not None:
            # Who stood behind us depended on our process, and must find out on whom it does now.
            behind = db.execute(
                "SELECT process, owner FROM waiters WHERE name = ? AND place > ?"
                f" AND {sound.waiter} ORDER BY place LIMIT 1", (name, place),
            ).fetchone()  # fmt: skip
            if behind is not None:
                self._mail.append((*behind, None))
        self.end()

    # -- the line ---------------------------------------------------------------------------------

    def _advance(self, name: bytes, now: float) -> Line:
        """Ends every change: drop who expired or died, then grant from the front while compatible.

        Dead waiters are dropped when they reach the front: the cost is that of the changes made,
        not of the line's length.
        """
        db, site = self.db, self.site
        line = Line()
        for fine, owner, process, mode, *rest in db.execute(HOLDERS, (name,)).fetchall():
            if not fine:
                self._refuse("holders", name)
            expires = rest[1]
            if expires <= now or (process not in line.processes and not site.alive(process)):
                db.execute("DELETE FROM holders WHERE name = ? AND owner = ?", (name, owner))
            else:
                line.add(owner, process, Mode(mode), *rest)
        while (first := self._first(name)) is not None:
            if first.expires > now and site.alive(first.process):
                if not line.admits(first):
                    self._tell_first(line, name, first)
                    break
                held = self._grant(line, name, first, now)
                self._mail.append((first.process, first.owner, held))
            db.execute("DELETE FROM waiters WHERE name = ? AND place = ?", (name, first.place))
        return line

    def _move_on(self, name: bytes, now: float) -> None:
        """The same for who has left in any case: that a row of somebody else's is not sound is told
        to who asks for the name."""
        try:
            self._advance(name, now)
        except Misconfigured:
            pass

    def _refuse(self, table: str, name: bytes) -> NoReturn:
        sound.refuse(self.db, self.site.path, table, name)

    def _wish(self, claim: Claim) -> Waiter:
        return Waiter(
            claim.owner, self.site.number, claim.mode.value, claim.permits, claim.limit, claim.ttl,
            self.written.of(claim.info),
        )  # fmt: skip

    def _first(self, name: bytes) -> Waiter | None:
        row = self.db.execute(FIRST, (name,)).fetchone()
        if row is None:
            return None
        if not row[0]:
            self._refuse("waiters", name)
        return Waiter(*row[1:])

    def _grant(self, line: Line, name: bytes, wish: Waiter, now: float) -> Held:
        mode = Mode(wish.mode)
        fence: int | None = None
        if mode is Mode.EXCLUSIVE or (mode is Mode.SHARED and line.mode is None):
            # For readers a token of this moment will do: it is larger than the last writer's, and
            # smaller than the next one's.
            fence = self.site.epoch.reserve(self.db)
        elif mode is Mode.SHARED:
            fence = line.writer
        owner, process, expires = wish.owner, wish.process, now + wish.ttl
        self.db.execute(
            TAKE,
            (name, owner, process, wish.mode, wish.permits, now, expires, fence, wish.info),
        )
        line.add(owner, process, mode, wish.permits, expires, fence, wish.info)
        return line.held[owner]

    def _tell_first(self, line: Line, name: bytes, first: Waiter) -> None:
        """Have it look if there is a holder whose end it would not notice, or not in time."""
        missing = not depends_on(first.depends, line.processes)
        if missing or line.expires < first.look_at - LATER:
            self.db.execute(DEPEND, (line.expires, joined(line.processes), name, first.place))
            self._mail.append((first.process, first.owner, None))

    def _in_line(self, line: Line, name: bytes, owner: str, place: int) -> InLine:
        """What to tell a claim that stands in line, at this place."""
        before = self.db.execute(
            f"SELECT process, {sound.waiter} FROM waiters WHERE name = ? AND place < ?"
            " ORDER BY place DESC LIMIT 1", (name, place),
        ).fetchone()  # fmt: skip
        if before is not None and not before[1]:
            self._refuse("waiters", name)
        processes, look_at = self._depend(line, owner, None if before is None else before[0])
        self.db.execute(DEPEND, (look_at, processes, name, place))
        return InLine(holder_of(line.info), None, look_at + schema.AHEAD)

    def _depend(self, line: Line, owner: str, before: int | None) -> tuple[str, float]:
        """On whom a claim in line depends from now on, and when it looks by itself: nobody else
        tells the line that a holder expired, so who is first looks then. The others look a little
        later: who was first may have left or died. `before`: the process of who is before it."""
        processes = line.processes if before is None else {before}
        self.dependencies.append((owner, frozenset(processes - {0})))
        return joined(processes), line.expires + (0.0 if before is None else LATER)

    def _place(self, owner: str) -> int | None:
        row = self.db.execute("SELECT place FROM waiters WHERE owner = ?", (owner,)).fetchone()
        if row is None:
            return None
        place: int = row[0]
        return place

    def _refresh(self, claim: Claim, place: int, now: float) -> None:
        self.db.execute(
            "UPDATE waiters SET expires = ?, process = ? WHERE name = ? AND place = ?",
            (now + claim.ttl, self.site.number, claim.name.encode(), place),
        )

    _sweep_at = 0.0

    # -- operators --------------------------------------------------------------------------------

    def inspect(self, prefix: str, exact: bool) -> list[LockInfo]:
        low = prefix.encode()
        high = low + (b"\0" if exact else b"\xff")
        now = self.begin()
        self._sweep(now, low, high)
        if exact:
            for name, table in unsound(self.db, low, high).items():
                self._refuse(table, name)
        found = overview(self.db, self.site.alive, now, low, high)
        self.end()
        return found

    def sweep(self) -> None:
        """Forget what is over and nobody asked about again."""
        now = self.begin()
        self._sweep(now, b"", b"\xff")
        self.tombstones.forget(now)
        self.sweep_cells(now)
        self.end()

    def _sweep(self, now: float, low: bytes, high: bytes) -> None:
        """Move on the lines in which somebody expired or died."""
        names: set[bytes] = set()
        for table, fine in (("holders", sound.holder), ("waiters", sound.waiter)):
            within = f"FROM {table} WHERE name >= ? AND name < ? AND {fine}"
            found = self.db.execute(f"SELECT DISTINCT process {within}", (low, high)).fetchall()
            dead = [process for (process,) in found if not self.site.alive(process)]
            marks = ",".join("?" * len(dead))
            names.update(
                name
                for (name,) in self.db.execute(
                    f"SELECT DISTINCT name {within} AND (expires <= ? OR process IN ({marks}))",
                    (low, high, now, *dead),
                ).fetchall()
            )
        for name in names:
            self._move_on(name, now)

    def evict(self, name: str) -> int:
        key = name.encode()
        now = self.begin()
        holders = self.db.execute(HOLDERS, (key,)).fetchall()
        count = 0
        for fine, _, process, _, _, expires, _, _ in holders:
            count += not fine or (expires > now and self.site.alive(process))
        self.db.execute("DELETE FROM holders WHERE name = ?", (key,))
        self.db.execute(f"DELETE FROM waiters WHERE name = ? AND NOT {sound.waiter}", (key,))
        self._advance(key, now)
        self.end()
        return count


def _held(expires: float, fence: int | None) -> Held:
    """As the clock of this process counts; in the file and in mail it is the host's."""
    return Held(expires + schema.AHEAD, fence)
