"""The lease, as a pure state machine: (state, now) -> renew, sleep or lost.

Laws kept here: 1 (validity is dated from before the request was sent, minus drift), 5 (the holder
learns of a loss no later than its local deadline) and 6 (a renewal never shortens). Nothing here
reads a clock, waits or talks: the keeper does, and asks this module what to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["DRIFT", "LeaseState", "Lose", "Renew", "Sleep", "Step", "called_until", "valid_until"]

DRIFT = 0.002
"""How far two healthy clocks may run apart per second: four times what NTP's slewing allows."""

STALE = 5.0
"""Seconds; an exchange older than this dates no call."""

JITTER = 0.1
"""Renewals are spread over the last tenth of their interval, always early, never late."""


def valid_until(sent: float, ttl: float, drift: float = DRIFT) -> float:
    """Until when a lease of `ttl` may be trusted whose request left at `sent`.

    The store started counting when the request arrived, which is later: so the store always ends
    the lease after we stopped believing in it, as long as the clocks' rates differ by < drift.
    """
    return sent + ttl - ttl * drift


def called_until(sent: float, seen: int, clock: int, span: int, now: float) -> float | None:
    """Until when to trust a grant that a store has called out, at its own `clock` and for `span`,
    both in microseconds. **Hazard**: this process may have been paused after the call was sent, or
    the store before, so it is dated neither from its arrival nor from when we came to stand in
    line, but by the store's clock: from an exchange that left at `sent` and was answered when that
    clock was at `seen`. None when that is too long ago to tell.
    """
    # Negative when the exchange was later than the call, or overtook it: it dates as well. (A clock
    # that was set back in between makes it earlier than it is: that is safe.)
    elapsed, seconds = (clock - seen) / 1e6, span / 1e6
    if abs(elapsed) > STALE or now - sent > STALE:
        return None
    return min(sent + elapsed + seconds - DRIFT * (abs(elapsed) + seconds), now + seconds)


@dataclass(slots=True, frozen=True)
class Renew:
    """Ask the store to extend, now."""


@dataclass(slots=True, frozen=True)
class Sleep:
    """Nothing to do before that moment."""

    until: float


@dataclass(slots=True, frozen=True)
class Lose:
    """It is over: tell the holder."""

    reason: str


Step = Renew | Sleep | Lose
RENEW = Renew()


class LeaseState:
    """Until when, how certain, and when to renew. `end` is empty while the lease lasts, then
    "released" or the reason of its loss; it changes once."""

    __slots__ = ("certain_until", "end", "failures", "renew_at", "renew_every", "until")

    def __init__(self, sent: float, until: float, renew_every: float | None, random: float) -> None:
        self.until = until
        self.certain_until = math.inf
        self.renew_every = renew_every
        self.renew_at = math.inf
        self.failures = 0
        self.end = ""
        if renew_every is not None:
            self.renew_at = sent + renew_every * (1 - JITTER * random)

    @property
    def due(self) -> float:
        """When something is to be done about it."""
        return self.renew_at if self.renew_at < self.until else self.until

    def trusted(self, now: float) -> bool:
        """Whether the lease may be relied on at `now`. Every look computes (law 1): no timer and
        no thread stands between the clock and the answer."""
        return not self.end and now < self.until and now < self.certain_until

    def step(self, now: float) -> Step:
        if now >= self.until:
            return Lose(self.ran_out(now))
        if now >= self.renew_at:
            return RENEW
        return Sleep(self.due)

    def ran_out(self, now: float) -> str:
        """Why it is lost, from its deadline on: whoever notices says the same."""
        late = now - self.until
        ago = f", {late:.1f} s ago" if late >= 0.1 else ""
        return f"its time ran out without a renewal{ago}"

    def renewed(self, sent: float, until: float, random: float) -> None:
        """The store agreed to a renewal that left at `sent`."""
        self.until = max(self.until, until)
        self.failures = 0
        every = self.renew_every  # another thread may fix it now
        self.renew_at = math.inf if every is None else sent + every * (1 - JITTER * random)

    def unanswered(self, now: float, pause: float) -> None:
        """A renewal got no answer: it is tried again after `pause`, until the deadline."""
        self.failures += 1
        self.renew_at = now + pause
