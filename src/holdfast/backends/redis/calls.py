"""Calls, and what they are worth: the store's word that it is somebody's turn.

Law kept here: 1, by `core/lease.called_until` and the latest exchange with the same server whose
clock a call names. Partner: `waiting.py`, which hears them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from holdfast.core.lease import called_until, valid_until
from holdfast.core.port import Event
from holdfast.types import Claim, Grant

__all__ = ["Anchors", "Called", "Line", "Place", "Ticket", "held_until"]


class Called(NamedTuple):
    """What a call says: the token, the server's clock, and for how long it is ours to claim."""

    fence: int
    clock: int
    span: int
    run_id: str


class Anchors:
    """For each server, a moment here that was surely before a moment there."""

    def __init__(self) -> None:
        self._anchors: dict[str, tuple[float, int]] = {}

    def set(self, run_id: str, sent: float, clock: int) -> None:
        if run_id:
            if len(self._anchors) > 64:
                self._anchors.clear()
            self._anchors[run_id] = sent, clock

    def until(self, called: Called, now: float) -> float | None:
        """Until when a grant may be trusted; None when that cannot be told from here, as when the
        ear hears another server (which passes on what the first one called)."""
        anchor = self._anchors.get(called.run_id)
        if anchor is None:
            return None
        return called_until(*anchor, called.clock, called.span, now)


class Place(NamedTuple):
    """Where an attempt has put a claim."""

    number: int
    look_at: float  # when its turn may come without a call
    sent: float
    run_id: str  # who said so
    hearing: str  # what we had said about listening


class Ticket:
    """One waiter: where its turn arrives."""

    __slots__ = ("called", "claim", "event", "grant", "place")

    def __init__(self, claim: Claim, place: Place, event: Event) -> None:
        self.claim = claim
        self.place = place
        self.event = event
        self.called: Called | None = None
        self.grant: Grant | None = None

    def call(self, called: Called) -> None:
        self.called = called
        self.event.set()


class Line:
    """One name that somebody here waits for."""

    __slots__ = ("beat_at", "failing_since", "interval", "tickets")

    def __init__(self, interval: float) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.interval = interval
        self.beat_at = math.inf
        self.failing_since = math.inf

    def first(self) -> Ticket | None:
        """The one whose number is the lowest: lines are served in that order."""
        return min(self.tickets.values(), key=_number, default=None)


def _number(ticket: Ticket) -> int:
    return ticket.place.number


def held_until(sent: float, remaining: int) -> float:
    """Until when a lease may be trusted that had so many microseconds left when it was seen."""
    return valid_until(sent, remaining / 1e6)
