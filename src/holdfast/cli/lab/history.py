"""What happened in a scene of the lab, and who held the lock when. Records in, facts out.

Contract: nothing but the record decides. Moments are CLOCK_BOOTTIME of one host, so they compare.
A hold is what its holder *acts on*: from "hold" until it is given up ("free"), known to be over
("lost", or a "look" that found it so), or ended by SIGKILL. While a process is stopped it acts on
nothing, and in the plays one that goes on looks before it acts.
Partners: `scene.py` writes the record; the levels judge it; `drawing.py` draws it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Event", "History", "Overlap", "Stretch"]


@dataclass(slots=True, frozen=True, eq=False)
class Event:
    at: float
    who: str  # an actor, or what the director did something to: "network", "server"
    what: str
    figures: dict[str, Any] = field(default_factory=dict[str, Any])


class Stretch(NamedTuple):
    """Somebody ran, and acted on holding the lock."""

    who: str
    start: float
    end: float


class Overlap(NamedTuple):
    who: str
    other: str
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


class History:
    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events = sorted(events, key=lambda event: event.at)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.events.sort(key=lambda one: one.at)

    def find(self, who: str, *whats: str) -> list[Event]:
        return [event for event in self.events if event.who == who and event.what in whats]

    def first(self, who: str, *whats: str) -> Event | None:
        return next(iter(self.find(who, *whats)), None)

    def held(self, *people: str) -> bool:
        """Whether each of them had the lock at some time."""
        return all(self.first(who, "hold") for who in people)

    @property
    def end(self) -> float:
        return self.events[-1].at if self.events else 0.0

    # -- who held, when ---------------------------------------------------------------------------

    def stretches(self) -> list[Stretch]:
        people = dict.fromkeys(event.who for event in self.events)
        return [stretch for who in people for stretch in self._of(who)]

    def _of(self, who: str) -> Iterator[Stretch]:
        since: float | None = None
        stopped = unsure = False
        for event in self.events:
            if event.who != who:
                continue
            over = event.what in ("free", "killed", "lost", "stopped") or (
                event.what == "look" and not event.figures["held"]
            )
            if event.what == "hold":
                since, stopped, unsure = event.at, False, False
            elif event.what == "woken" and stopped:
                since, stopped, unsure = event.at, False, True
            elif event.what == "look" and not over:
                unsure = False
            elif over and since is not None:
                learned = unsure and event.what in ("lost", "look")  # before it acted again
                if not learned:
                    yield Stretch(who, since, event.at)
                since, stopped = None, event.what == "stopped"
        if since is not None:
            yield Stretch(who, since, max(self.end, since))

    def overlaps(self) -> list[Overlap]:
        """Two at once, the earliest first."""
        found: list[Overlap] = []
        for one, other in itertools.combinations(
            sorted(self.stretches(), key=lambda s: s.start), 2
        ):
            start, end = max(one.start, other.start), min(one.end, other.end)
            if one.who != other.who and start < end:
                found.append(Overlap(one.who, other.who, start, end))
        return found
