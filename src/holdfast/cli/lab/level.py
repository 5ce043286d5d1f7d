"""What a level of the lab is made of: a fault, two forms of a lock that meet it, and a judge.

Contract: `play` inflicts the fault on whatever form it is given and knows nothing of the form, so
both meet the same; `judge` sees only the record. A finding is "unclear" when the fault did not
happen or what had to happen afterwards did not: then nothing was shown, in either direction.
Partners: `levels/`, one file each; `scene.py`, which plays them; `actor.py`, which runs the forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.cli.lab.history import History
from holdfast.cli.lab.resp import Redis

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

__all__ = ["NOT_SHOWN", "Finding", "Form", "Level", "LockForm", "judge_exclusion", "naive", "ours"]

Outcome = Literal["broken", "held", "unclear"]


@dataclass(slots=True, frozen=True)
class Finding:
    outcome: Outcome
    text: str


class LockForm(Protocol):
    """What an actor of the lab can do with any form of a lock."""

    on_lost: Callable[[], None] | None
    """Called when the holder learns that it is no longer theirs, if this form ever tells."""

    @property
    def held(self) -> bool:
        """Asked of somebody who has taken it: is it still theirs, as far as they can know?"""
        ...

    @property
    def fence(self) -> int | None: ...
    def attempt(self) -> bool:
        """Take it if it is free."""
        ...

    def acquire(self, patience: float) -> bool:
        """Wait so long for it."""
        ...

    def release(self) -> bool | None:
        """True: it was ours until now; None: this form cannot tell."""
        ...


@dataclass(slots=True, frozen=True)
class Form:
    """One way to write a lock, and what the level expects of it."""

    name: str
    text: str  # how it is written, in a line or two
    expected: Outcome
    make: Callable[[str, str, str, float], LockForm]
    """(url, name of the lock, name of the actor, ttl) -> a lock"""
    source: type | None = None  # the class to show on the page


@dataclass(slots=True, frozen=True)
class Level:
    name: str
    title: str
    fault: str
    why: str
    ttl: float  # of ada, to whom it happens; the others' leases do not end in a scene
    cast: tuple[str, ...]
    forms: tuple[Form, ...]
    play: Callable[[Scene], None]
    judge: Callable[[History], Finding]
    proxied: tuple[str, ...] = ()  # whose requests go through the fault proxy
    cold: tuple[str, ...] = ()  # whose server does not take writes before the fault
    clocks: dict[str, float] = field(default_factory=dict[str, float])
    """Whose wall clock is wrong, and by how many seconds."""
    replicated: bool = False  # needs a master of its own, with replicas, to lose
    masters: bool = False  # needs three masters of its own, which know nothing of each other
    others_ttl: float = 30.0  # of whom nothing happens to
    length: float = 1.2  # seconds that its timeline shows at least


def naive(text: str, kind: Callable[[Redis, str, str, float], LockForm]) -> Form:
    """The form that is expected to break."""

    def make(url: str, name: str, me: str, ttl: float) -> LockForm:
        return kind(Redis(url), name, me, ttl)

    return Form("naive", text, "broken", make, kind if isinstance(kind, type) else None)


def ours(ttl: float, text: str = "", name: str = "holdfast", query: str = "") -> Form:
    """holdfast's, by its public API alone."""

    def make(url: str, lock: str, me: str, ttl: float) -> LockForm:
        from holdfast.cli.lab.ours import Ours

        separator = "&" if "?" in url else "?"
        return Ours(f"{url}{separator}{query}" if query else url, lock, me, ttl)

    return Form(name, text or f'holdfast.connect(url).lock("stock", ttl={ttl:g})', "held", make)


NOT_SHOWN = "nothing was shown: "


def judge_exclusion(history: History, one: str, other: str, *cast: str) -> Finding:
    """Broken: these two held it at once. Held: nobody did, and everybody of the cast had it."""
    for overlap in history.overlaps():
        if {overlap.who, overlap.other} == {one, other}:
            length = f"{overlap.length * 1e3:.0f} ms"
            return Finding("broken", f"{one} and {other} held the lock at the same time, {length}")
    if other_pairs := history.overlaps():
        pairs = ", ".join(f"{o.who} and {o.other}" for o in other_pairs)
        return Finding("unclear", f"{NOT_SHOWN}two at once, but others than expected ({pairs})")
    if missing := [who for who in cast if not history.held(who)]:
        return Finding("unclear", f"{NOT_SHOWN}{', '.join(missing)} never had the lock")
    holds = len([event for event in history.events if event.what == "hold"])
    return Finding("held", f"{holds} holds by {len(cast)} processes, never two at once")
