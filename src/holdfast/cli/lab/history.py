"""What happened in a scene of the lab, and who held the lock when. Records in, facts out.

Contract: nothing but the record decides. Moments are CLOCK_BOOTTIME of one host, so they compare.
A hold is what its holder *acts on*: from "hold" until it is given up ("free"), seen to be over
("look" that found it not held), or ended by SIGKILL; while a process is stopped it acts on nothing.
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
        self.events = list(events)

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
        holding, since = False, None
        for event in self.events:
            if event.who != who:
                continue
            match event.what:
                case "hold":
                    holding, since = True, event.at
                case "stopped" | "free" | "killed" | "gone":
                    if since is not None:
                        yield Stretch(who, since, event.at)
                    holding, since = holding and event.what == "stopped", None
                case "woken" if holding:
                    since = event.at
                case "look" if event.figures["held"] is False:
                    # What was before the pause is a stretch already: it looked before it acted.
                    holding, since = False, None
                case _:
                    pass
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
