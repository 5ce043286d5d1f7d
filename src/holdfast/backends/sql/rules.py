"""The rules of a line: who expired, who may hold, who is next. Pure: nothing here asks a database.

Contract: a `Line` is one name as it was read under its row's lock. Changing it collects what has
to be written; `step.py` reads it, has it `advance`, and writes that. Times are microseconds on the
database's clock.

Laws kept here: 3 (idempotent per owner; looking refreshes and never creates), 6 (one call for one
hand-over; the cost is that of the changes made, not of the line's length), 7 (tokens only grow).
Partner: `memory/store.py`, the same rules in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.backends.common import admits
from holdfast.backends.sql.words import GRAVE, GRAVES, HEADS, HOLDER, WAITER
from holdfast.types import Mode

__all__ = ["FAR", "LATER", "MODES", "Entry", "Line", "microseconds", "mode_of"]

LATER = 50_000
"""How long after an expiry those behind the first in line look whether it was taken care of."""

FAR = 1 << 62
"""Never."""

MODES = (Mode.EXCLUSIVE, Mode.SHARED, Mode.PERMITS)
"""As the tables number them."""


def mode_of(number: int) -> Mode:
    """One that somebody else has written excludes all others."""
    return MODES[number] if 0 <= number < len(MODES) else Mode.EXCLUSIVE


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


@dataclass(slots=True, eq=False)
class Entry:
    """A row of claims, in the order of `words.COLUMNS`; or who holds alone, whose place is 0."""

    kind: int
    place: int
    owner: bytes
    mode: int
    permits: int
    most: int
    ttl: int
    patience: int
    since: int
    expires: int
    look_at: int
    fence: int | None
    client: bytes
    info: bytes

    @property
    def call(self) -> str:
        """What it is told when it was let in (`room.py`)."""
        span, owner = self.expires - self.since, self.owner.decode(errors="replace")
        return f"{self.place} {self.fence or 0} {self.since} {span} {owner}"


class Line:
    """One name under its lock."""

    def __init__(self, row: tuple[Any, ...], claims: Iterable[tuple[Any, ...]], me: bytes) -> None:
        self.version, owner, expires, since, ttl, line, info, self.now = row
        self.flagged = bool(line)
        self.holders: dict[bytes, Entry] = {}
        self.graves: dict[bytes, Entry] = {}
        self.waiters: deque[Entry] = deque()  # the first of them, oldest first
        self.mine: Entry | None = None  # my place in line
        # What is to be written:
        self.dead: list[Entry] = []  # they expired
        self.left: list[Entry] = []  # they go because somebody said so
        self.reaped: list[tuple[Entry, int]] = []  # they go if nobody has renewed them
        self.granted: list[Entry] = []  # they waited, and hold now
        self.added: list[Entry] = []
        self.longer: list[Entry] = []  # holders whose time was extended
        self.called: Entry | None = None  # the first in line, who must look sooner than it thinks
        self.changed = False  # the row of the name itself
        self.looked: Entry | None = None  # a waiter whose look this is
        self.sweep = False  # whether all that is over is dropped, also what was not read
        if owner and expires > self.now:
            self.holders[owner] = Entry(
                HOLDER, 0, owner, 0, 1, 1, ttl, 0, since, expires, 0, self.version, b"", info
            )
        elif owner:
            self.changed = True
        waiters: dict[int, Entry] = {}
        graves = 0
        for entry in {row[1]: Entry(*row) for row in claims}.values():  # mine may be there twice
            graves += entry.kind == GRAVE
            if entry.kind == WAITER:
                waiters[entry.place] = entry
                if entry.owner == me:
                    self.mine = entry
            elif entry.expires <= self.now:
                self.dead.append(entry)
            elif entry.kind == HOLDER:
                self.holders[entry.owner] = entry
            else:
                self.graves[entry.owner] = entry
        # Mine may be further behind.
        self.waiters.extend(waiters[place] for place in sorted(waiters)[:HEADS])
        self.complete = len(self.waiters) < HEADS  # nobody is behind those in `waiters`
        self.buried = graves >= GRAVES  # there may be tombstones that were not read
        self.sweep = self.buried and any(entry.kind == GRAVE for entry in self.dead)

    def read_on(self, waiters: Iterable[Entry]) -> None:
        """Those further behind, in order; without who has just left."""
        left = {entry.place for entry in self.left}
        for entry in waiters:
            if self.mine is not None and entry.place == self.mine.place:
                entry = self.mine
            if entry.place not in left:
                self.waiters.append(entry)

    # -- looking ----------------------------------------------------------------------------------

    def admits(self, mode: int, permits: int, most: int) -> bool:
        if not self.holders:
            return True
        held = next(iter(self.holders.values())).mode
        taken = sum(entry.permits for entry in self.holders.values())
        return admits(mode_of(held), taken, mode_of(mode), permits, most)

    @property
    def next_expiry(self) -> int:
        return min((entry.expires for entry in self.holders.values()), default=FAR)

    @property
    def holder(self) -> bytes:
        """What one of the holders says about itself."""
        return next((entry.info for entry in self.holders.values()), b"")

    def look_at(self, place: int) -> int:
        """When who has this place looks by itself. Nobody else tells the line that a holder
        expired, so the first looks then; the others a little later, and when the first should have
        said that it lives: it may have died."""
        if not self.waiters or place <= self.waiters[0].place:
            return self.next_expiry
        return min(self.next_expiry, self.waiters[0].expires) + LATER

    # -- changing ---------------------------------------------------------------------------------

    def remove(self, owner: bytes) -> bool:
        """Neither holds nor waits from now on; whether it held."""
        if self.mine is not None and self.mine.owner == owner:
            self.left.append(self.mine)
            if self.mine in self.waiters:
                self.waiters.remove(self.mine)
            self.mine = None
        held = self.holders.pop(owner, None)
        if held is None:
            return False
        if held.place:
            self.left.append(held)
        else:
            self.changed = True
        return True

    def reap(self, owner: bytes, expires: int) -> bool:
        """It holds no longer, if its time is what somebody has seen; whether it was so."""
        held = self.holders.get(owner)
        if held is None or held.expires != expires:
            return False
        del self.holders[owner]
        if held.place:
            self.reaped.append((held, expires))
        else:
            self.changed = True
        return True

    def share(self, owner: bytes) -> bool:
        """Who holds alone is a reader from now on, with the same token; whether it holds."""
        held = self.holders.get(owner)
        if held is None:
            return False
        if held.mode == 0:
            reader = self.holders[owner] = replace(held, mode=1)
            self.added.append(reader)
            self.changed = True
        return True

    def bury(self, owner: bytes, ttl: int) -> None:
        until = self.now + ttl
        if owner not in self.graves:
            grave = Entry(GRAVE, 0, owner, 0, 0, 0, ttl, 0, self.now, until, 0, None, b"", b"")
            self.graves[owner] = grave
            self.added.append(grave)

    def advance(self, window: int) -> bool:
        """Pass over dead waiters, and let in from the front whoever may hold. False: whoever stands
        further behind must be read first, then again."""
        while self.waiters:
            first = self.waiters[0]
            if first.expires <= self.now:
                self.dead.append(first)
                if first is self.mine:
                    self.mine = None
            elif self.admits(first.mode, first.permits, first.most):
                self._grant(first, min(first.ttl, window))
                self.granted.append(first)
                if first is self.mine:
                    self.mine = None
            else:
                return True
            self.waiters.popleft()
        return self.complete

    def take(self, entry: Entry) -> None:
        """A claim that stands in no line holds from now on."""
        self._grant(entry, entry.ttl)
        if entry.mode:
            self.added.append(entry)

    def enlist(self, entry: Entry) -> None:
        entry.expires = self.now + entry.patience
        entry.place = FAR  # behind all others: its number is given to it by the database
        entry.look_at = self.look_at(entry.place)
        self.mine = entry
        self.added.append(entry)
        if self.complete:
            self.waiters.append(entry)

    def stay(self) -> None:
        """Who waits has looked."""
        if self.mine is not None and self.looked is None:
            self.mine.expires = self.now + self.mine.patience
            self.looked = self.mine
        if self.mine is not None:
            self.mine.look_at = self.look_at(self.mine.place)

    def confirm(self, owner: bytes) -> Entry:
        """Who holds has its full time from now on, also if it was called for a moment only."""
        entry = self.holders[owner]
        until = self.now + entry.ttl
        if until > entry.expires:
            entry.expires = until
            if entry.place:
                self.longer.append(entry)
            else:
                self.changed = True
        return entry

    def _grant(self, entry: Entry, span: int) -> None:
        if entry.mode == 0:
            self.version = max(self.version + 1, self.now)
            self.changed = True
        elif not self.version:
            # The row is new, so the last writer's token is not known. One of this moment is larger
            # than that writer's, and smaller than the next one's.
            self.version = self.now
            self.changed = True
        entry.kind = HOLDER
        entry.fence = None if entry.mode == 2 else self.version
        entry.since, entry.expires = self.now, self.now + span
        self.holders[entry.owner] = entry

    def finish(self) -> None:
        """The last look before it is written."""
        alone = next((e for e in self.holders.values() if e.mode == 0), None)
        self.alone = alone
        others = len(self.holders) - (alone is not None)
        flagged = bool(others or self.graves or self.buried or self.waiters or not self.complete)
        if flagged != self.flagged:
            self.flagged = flagged
            self.changed = True
        first = self.waiters[0] if self.waiters else None
        if (
            first is not None
            and first.place != FAR
            and first is not self.looked
            and self.next_expiry < first.look_at - LATER
        ):
            # The new holder has a shorter lease than the one it was told of: have it look.
            first.look_at = self.next_expiry
            self.called = first
