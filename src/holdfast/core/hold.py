"""A hold: a granted claim for as long as somebody relies on it, and how its end is announced.

Contract: the lease's state (pure, `core/lease.py`) plus who stands on it and who must hear of its
loss. Each lease is a *share*, known by the acquisition it came from; several leases of a re-entrant
lock share one hold. Holds that were taken `together` stand and fall so: the loss of one is that of
all. Nothing here points at the user's Lease object, so that dropping it is noticed.
Partner: `core/keeper.py`, which alone ends holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from holdfast.core.lease import LeaseState
from holdfast.core.port import Event, Port
from holdfast.errors import LeaseLost
from holdfast.types import Grant, Mode

__all__ = ["RELEASED", "GuardRef", "Hold"]

RELEASED = "released"

Callback = Callable[[LeaseLost], Any]


class GuardRef(weakref.ref[Any]):
    """Notices that a lease, or the `with` statement that entered it (`core/guard.py`), is gone
    while it still stands on the hold. Its callback must be in C, so that no Ctrl-C gets into it."""

    __slots__ = ("hold", "share")
    hold: Hold
    share: object


class Hold(LeaseState):
    __slots__ = (
        "callbacks",
        "claim",
        "ended",
        "entry",
        "fence",
        "grant",
        "guards",
        "hint",
        "incarnation",
        "reads",
        "shares",
        "together",
        "told",
    )
    told: bool  # that its own thread or task waits for it, if that was said

    def __init__(
        self, grant: Grant, sent: float, renew_every: float | None, random: float, incarnation: int
    ) -> None:
        if grant.confirm_by is None:
            # What came while waiting may be old already: its renewal is dated from its start.
            sent = min(sent, grant.until - grant.claim.ttl)
        super().__init__(sent, grant.until, renew_every, random)
        if grant.confirm_by is not None and grant.confirm_by < self.renew_at:
            self.renew_at = grant.confirm_by
        self.certain_until = grant.certain_until
        self.claim = grant.claim
        self.grant = grant
        self.fence = grant.fence
        self.incarnation = incarnation
        self.hint = 0.0  # the moment for which the keeper has this hold on its agenda
        self.shares: list[object] | None = None  # re-entrant: one for each lease still standing
        self.entry: dict[tuple[str, Mode], Hold] | None = None  # where `Reentry` finds it
        self.reads: list[Hold] | None = None  # what its thread or task reads, this among them
        # Several threads change these, by single operations of a list, which are atomic.
        self.guards: list[GuardRef] = []  # its leases, and the `with` statements inside
        self.callbacks: list[tuple[object, Callback]] = []
        self.ended: Event | None = None  # made when somebody waits for it
        self.together: tuple[Hold, ...] = ()  # with itself, if it is one of several

    def listen(self, share: object, callback: Callback, port: Port) -> None:
        """Call back once if it is lost; at once if it was, or is just now."""
        self.callbacks.append((share, callback))
        if self.lost:  # looked at after saying so: one of us, or who loses it, sees the other
            self.announce(port)

    def watch(self, guard: Any, share: object, gone: Callable[[GuardRef], Any]) -> None:
        """Have `gone` called if the guard disappears while its share still stands here."""
        ref = GuardRef(guard, gone)
        ref.hold, ref.share = self, share
        self.guards.append(ref)

    def leave(self, share: object) -> bool:
        """Take one lease's share away; True when others still stand on this hold."""
        if self.shares is None:
            return False
        _discard(self.shares, share)
        if not self.shares:
            return False
        for ref in [ref for ref in self.guards if ref.share is share]:
            _discard(self.guards, ref)
        for pair in [pair for pair in self.callbacks if pair[0] is share]:
            _discard(self.callbacks, pair)
        ended, self.ended = self.ended, None
        if ended is not None:
            ended.set()  # who waits on this lease looks again
        return True

    def taken_by(self, context: object) -> bool:
        """Whether this thread or task took one of its leases, and has not passed it on."""
        alive = [ref() for ref in list((self.together or (self,))[0].guards)]
        return any(guard is not None and guard._taker is context for guard in alive)

    def forget(self) -> None:
        """No longer to be entered again: it has ended, or was detached from its thread or task.
        Under the port's mutex, as what it undoes: its thread may take the name anew meanwhile."""
        entry, self.entry = self.entry, None
        key = self.claim.name, self.claim.mode
        if entry is not None and entry.get(key) is self:
            entry.pop(key, None)
        reads, self.reads = self.reads, None
        if reads is not None:
            _discard(reads, self)

    @property
    def lost(self) -> bool:
        return bool(self.end) and self.end != RELEASED

    def as_one(self, reason: str) -> str:
        """Why what was taken together with this one is lost, if this one is for that reason."""
        return f"{self.claim.name!r}, which was taken together with it, was lost: {reason}"

    def loss(self) -> LeaseLost:
        """The error that says what happened, what it means and what to do."""
        name = self.claim.name
        return LeaseLost(
            f"the lease of {name!r} was lost: {self.end}. Somebody else may hold it now: stop "
            "using what it guards, or have the resource check the fencing token",
            name=name,
            reason=self.end,
            fence=self.fence,
        )

    def announce(self, port: Port) -> None:
        """Wake who waits for the end and, if it is a loss, call who asked to be called."""
        if self.ended is not None:
            self.ended.set()
        while self.callbacks:
            try:
                callback = self.callbacks.pop(0)[1]
            except IndexError:  # another thread announces it, too
                return
            if self.lost:
                port.call(callback, self.loss())


def _discard(items: list[Any], item: object) -> None:
    """Another thread may have done it."""
    try:
        items.remove(item)
    except ValueError:
        pass
