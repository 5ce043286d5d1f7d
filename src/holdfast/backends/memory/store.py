"""The memory backend's "server": a line for each name, a compatibility rule, and `advance`.

Contract: every method is one atomic step, as one Lua script or one SQL transaction is elsewhere.
Time is the clock given at construction and nobody else's. Every entry ends by itself: a holder
after its ttl, a waiter that stopped looking after its ttl, a tombstone after its ttl.

Laws kept here: 3 (idempotent per owner; looking refreshes and never creates; withdraw tombstones),
6 (a renewal never shortens; one wake-up for one grant), 7 (tokens only grow).

Hazard: this server runs in the user's thread, so Ctrl-C may strike between any two lines. Each
change is therefore ordered such that stopping after it leaves a line that `advance` puts right.
Partners: `backend.py`, the client's half; `cells.py`, the values beside the locks.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.backends.common import Tombstones, admits, public_id, shown
from holdfast.backends.local import LATER, Call, Enlist, Gone, Held, InLine
from holdfast.backends.memory.cells import Cells
from holdfast.types import Claim, ClaimInfo, LockInfo, Mode

__all__ = ["Store"]


@dataclass(slots=True, eq=False)
class Entry:
    claim: Claim
    since: float
    expires: float
    call: Call | None = None  # how to reach the waiter
    fence: int | None = None
    look_at: float = math.inf  # when the waiter will look by itself

    @property
    def held(self) -> Held:
        return Held(self.expires, self.fence)


class Line:
    """One name: who holds it and who waits, oldest first."""

    __slots__ = ("holders", "next_expiry", "queue", "writer")

    def __init__(self) -> None:
        self.holders: dict[str, Entry] = {}
        self.queue: OrderedDict[str, Entry] = OrderedDict()
        self.writer: int | None = None  # no exclusive token of this name was larger; None: unknown
        self.next_expiry = math.inf  # no holder expires before this

    def admits(self, claim: Claim) -> bool:
        if not self.holders:
            return True
        mode = next(iter(self.holders.values())).claim.mode
        taken = 0
        if mode is Mode.PERMITS:
            taken = sum(entry.claim.permits for entry in self.holders.values())
        return admits(mode, taken, claim.mode, claim.permits, claim.limit)


class Store(Cells):
    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        super().__init__(clock, wall)
        self._lines: dict[str, Line] = {}
        self._tombstones = Tombstones()

    # -- claims -----------------------------------------------------------------------------------

    def attempt(self, claim: Claim, enlist: Enlist | None) -> Held | InLine | Gone:
        """Take it if it may be had now; else stand in line, if there is somebody to `enlist`, who
        says how to call when it is this claim's turn."""
        with self.mutex:
            now = self._clock()
            if self._tombstones.cover(claim.owner, now):
                return Gone("this claim was withdrawn")
            line = self._lines.get(claim.name)
            if line is None:
                line = self._lines[claim.name] = Line()
            else:
                self._advance(claim.name, line, now)
            entry = line.holders.get(claim.owner)
            if entry is not None:  # asking twice is asking once
                return entry.held
            entry = line.queue.get(claim.owner)
            if entry is None and line.admits(claim) and (not line.queue or not claim.fair):
                self._lines[claim.name] = line  # advance() may have dropped it as empty
                entry = Entry(claim, now, now)
                self._grant(line, entry, now)
                return entry.held
            if entry is None and enlist is not None:
                ahead = len(line.queue)
                entry = Entry(claim, now, now + claim.ttl, enlist(claim))
                line.queue[claim.owner] = entry
                self._lines[claim.name] = line
                return self._in_line(line, claim.owner, ahead)
            if entry is not None:
                entry.expires = now + claim.ttl
            return self._in_line(line, claim.owner, None)

    def look(self, claim: Claim) -> Held | InLine | Gone:
        """A waiter's heartbeat: refreshes its place, never makes one."""
        with self.mutex:
            now = self._clock()
            line = self._lines.get(claim.name)
            if line is None:
                return Gone("not in line")
            entry = line.queue.get(claim.owner)
            if entry is not None:
                entry.expires = now + claim.ttl
            self._advance(claim.name, line, now)
            entry = line.holders.get(claim.owner)
            if entry is not None:
                return entry.held
            if claim.owner in line.queue:
                return self._in_line(line, claim.owner, None)
            return Gone("not in line")

    def renew(self, claims: Sequence[Claim]) -> list[bool]:
        with self.mutex:
            now = self._clock()
            held = list(map(self._renew, claims, itertools.repeat(now)))
        return held  # noqa: RET504 - a tracer would see a line between the list and the mutex

    def _renew(self, claim: Claim, now: float) -> bool:
        line = self._lines.get(claim.name)
        entry = None if line is None else line.holders.get(claim.owner)
        if entry is None or now >= entry.expires:
            return False
        entry.expires = max(entry.expires, now + claim.ttl)
        return True

    def release(self, claim: Claim, tombstone: bool) -> bool:
        """True if it held until now. The owner is compared and the line moved on in one step."""
        with self.mutex:
            now = self._clock()
            if tombstone:
                self._tombstones.bury(claim, now)
            line = self._lines.get(claim.name)
            if line is None:
                return False
            entry = line.holders.get(claim.owner)
            held = entry is not None and now < entry.expires
            line.holders.pop(claim.owner, None)
            self._advance(claim.name, line, now)
            return held

    def downgrade(self, claim: Claim) -> bool:
        """True if it holds, and is a reader from now on; its token is the last writer's."""
        with self.mutex:
            now = self._clock()
            line = self._lines.get(claim.name)
            entry = None if line is None else line.holders.get(claim.owner)
            if line is None or entry is None or now >= entry.expires:
                return False
            entry.claim = replace(entry.claim, mode=Mode.SHARED)
            self._advance(claim.name, line, now)
            return True

    def withdraw(self, claim: Claim, tombstone: bool) -> None:
        """Out of the line, or out of the lock: nothing of this owner stays; nothing comes, either,
        with a tombstone."""
        with self.mutex:
            now = self._clock()
            if tombstone:
                self._tombstones.bury(claim, now)
            line = self._lines.get(claim.name)
            if line is not None:
                line.queue.pop(claim.owner, None)
                line.holders.pop(claim.owner, None)
                self._advance(claim.name, line, now)

    def evict(self, name: str) -> int:
        with self.mutex:
            line = self._lines.get(name)
            if line is None:
                return 0
            now = self._clock()
            count = sum(now < entry.expires for entry in line.holders.values())
            line.holders.clear()
            self._advance(name, line, now)
            return count

    def _advance(self, name: str, line: Line, now: float) -> None:
        """Ends every change: drop who expired, then grant from the front while compatible.

        Dead waiters are dropped when they reach the front: the cost is that of the changes made,
        not of the line's length.
        """
        holders, queue = line.holders, line.queue
        if now >= line.next_expiry:
            for owner, entry in list(holders.items()):
                if now >= entry.expires:
                    del holders[owner]
            line.next_expiry = min((e.expires for e in holders.values()), default=math.inf)
        while queue:
            owner = next(iter(queue))
            entry = queue[owner]
            if owner not in holders:
                if now >= entry.expires:
                    del queue[owner]
                    continue
                if not line.admits(entry.claim):
                    break
                self._grant(line, entry, now)
            if entry.call is not None:
                entry.call(entry.held)
            del queue[owner]
        if queue:
            first = next(iter(queue.values()))
            if line.next_expiry < first.look_at - LATER and first.call is not None:
                # The new holder has a shorter lease than the one we told it of: have it look.
                first.look_at = line.next_expiry
                first.call(None)
        elif not holders:
            self._lines.pop(name, None)

    def _grant(self, line: Line, entry: Entry, now: float) -> None:
        claim = entry.claim
        if claim.mode is Mode.EXCLUSIVE:
            entry.fence = line.writer = self._token()
        elif claim.mode is Mode.SHARED:
            if line.writer is None:
                # Lines are forgotten when empty, and with them their last writer's token. A token
                # of this moment is larger than that writer's, and smaller than the next one's.
                line.writer = self._token()
            entry.fence = line.writer
        entry.since = now
        entry.expires = now + claim.ttl
        if entry.expires < line.next_expiry:
            line.next_expiry = entry.expires
        line.holders[claim.owner] = entry

    def _in_line(self, line: Line, owner: str, ahead: int | None) -> InLine:
        holder = ""
        if line.holders:
            holder = shown(next(iter(line.holders.values())).claim.info)
        # Nobody else tells the line that a holder expired, so who is first looks then (a hazard
        # shown by a run). The others look a little later: who was first may have left or died.
        first = next(iter(line.queue), None) == owner
        look_at = line.next_expiry + (0.0 if first else LATER)
        entry = line.queue.get(owner)
        if entry is not None:
            entry.look_at = look_at
        return InLine(holder, ahead, look_at)

    # -- inspection -------------------------------------------------------------------------------

    def inspect(self, prefix: str, exact: bool) -> list[LockInfo]:
        with self.mutex:
            now = self._clock()
            names = [prefix] if exact else sorted(n for n in self._lines if n.startswith(prefix))
            found: list[LockInfo] = []
            for name in names:
                line = self._lines.get(name)
                if line is None:
                    continue
                self._advance(name, line, now)
                holders = tuple(_info(e, now) for e in line.holders.values())
                waiters = tuple(_info(e, now) for e in line.queue.values() if now < e.expires)
                if holders or waiters:
                    found.append(LockInfo(name, holders, waiters, line.writer))
            return found

    def leftovers(self) -> list[str]:
        """What is still stored, for tests of "nothing is left behind"; empty is good."""
        with self.mutex:
            now = self._clock()
            self._tombstones.forget(now)
            for name, line in list(self._lines.items()):
                self._advance(name, line, now)
            lines = [
                f"{name}: {len(line.holders)} holders, {len(line.queue)} waiters"
                for name, line in self._lines.items()
            ]
            left = self._tombstones.left()
            return lines + [f"tombstone until {until - now:+.3f}" for until in left]


def _info(entry: Entry, now: float) -> ClaimInfo:
    claim = entry.claim
    return ClaimInfo(
        id=public_id(claim.owner),
        mode=claim.mode,
        since=now - entry.since,
        remaining=entry.expires - now,
        permits=claim.permits,
        fence=entry.fence,
        info=dict(claim.info),
    )
