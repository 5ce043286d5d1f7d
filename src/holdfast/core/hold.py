"""A hold: a granted claim for as long as somebody relies on it, and how its end is announced.

Contract: the lease's state (pure, `core/lease.py`) plus who must hear of its loss. Several leases
of a re-entrant lock share one hold. Nothing here points at the user's Lease object, so that
dropping it is noticed. Partner: `core/keeper.py`, which alone ends holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.lease import LeaseState
from holdfast.core.port import Event, Port
from holdfast.errors import LeaseLost
from holdfast.types import Grant, Mode

__all__ = ["RELEASED", "Hold"]

RELEASED = "released"


class Hold(LeaseState):
    __slots__ = ("callbacks", "claim", "ended", "entry", "fence", "grant", "incarnation", "shares")

    def __init__(
        self, grant: Grant, sent: float, renew_every: float | None, random: float, incarnation: int
    ) -> None:
        super().__init__(sent, grant.until, renew_every, random)
        if grant.confirm_by is not None and grant.confirm_by < self.renew_at:
            self.renew_at = grant.confirm_by
        self.claim = grant.claim
        self.grant = grant
        self.fence = grant.fence
        self.incarnation = incarnation
        self.shares: list[object] | None = None  # re-entrant: one for each lease still standing
        self.entry: dict[tuple[str, Mode], Hold] | None = None  # where `Reentry` finds it
        self.callbacks: list[Callable[[LeaseLost], Any]] | None = None
        self.ended: Event | None = None  # made when somebody waits for it

    def leave(self, share: object) -> bool:
        """Take one lease's share away; True when others still stand on this hold."""
        if self.shares is None:
            return False
        try:
            self.shares.remove(share)
        except ValueError:  # it had left before
            return True
        return bool(self.shares)

    @property
    def lost(self) -> bool:
        return bool(self.end) and self.end != RELEASED

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
        """Call who asked to be called if it is a loss."""
        if self.lost and self.callbacks:
            callbacks, self.callbacks = self.callbacks, None
            for callback in callbacks:
                port.call(callback, self.loss())
