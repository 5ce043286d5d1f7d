"""What a thread or task has already of what it asks for: which holds it may enter again, counted
here and not in the store, and when it would wait for itself.

Contract: keyed by (name, mode) and a *weak* reference to the thread or task itself. Thread idents
are reused by the operating system, so a new thread could inherit a dead one's locks (a hazard that
was shown by a run); an object that dies with its thread cannot be mistaken. So is what it reads, of
reentrant locks or not: to ask for the same name as a writer would be to wait for oneself.

Of other locks nobody can know: a lease may be passed to another thread or task, which releases it
while the one that took it waits for the next. So that is no error. But it is said, at once, and
looked for only when somebody waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from holdfast.core.hold import Hold
from holdfast.core.options import Want
from holdfast.errors import WouldDeadlock
from holdfast.types import Mode

__all__ = ["Reentry", "advice", "in_its_own_way"]


class Reentry:
    def __init__(self) -> None:
        self._by_context: WeakKeyDictionary[object, dict[tuple[str, Mode], Hold]] = (
            WeakKeyDictionary()
        )
        self.readers: WeakKeyDictionary[object, list[Hold]] = WeakKeyDictionary()

    def find(self, name: str, mode: Mode, context: object) -> Hold | None:
        holds = self._by_context.get(context)
        return None if holds is None else holds.get((name, mode))

    def remember(self, hold: Hold, context: object) -> None:
        # Under the port's mutex: the keeper forgets what was lost, and not what came after it.
        holds = self._by_context.get(context)
        if holds is None:
            holds = self._by_context[context] = {}
        hold.entry = holds  # what `Hold.forget` undoes
        holds[hold.claim.name, hold.claim.mode] = hold

    def reads(self, hold: Hold, context: object) -> None:
        """Whoever has this shared hold cannot wait for the name's writers to come to an end."""
        if context is None:  # no task of its loop
            return
        held = self.readers.get(context)
        if held is None:
            held = self.readers[context] = []
        hold.reads = held  # what `Hold.forget` undoes
        held.append(hold)

    def check_upgrade(self, name: str, context: object) -> None:
        held = self.readers.get(context, ()) if context is not None else ()
        if any(hold.claim.name == name and not hold.end for hold in list(held)):
            raise WouldDeadlock(
                f"this thread or task reads {name!r}, and to write it would wait for itself. Two "
                "that did so would wait for one another, so there is no upgrade: release it, "
                "acquire to write, and look again at what was read. (Somebody else will release "
                "it? Then detach() it first)"
            )


LOOKED_THROUGH = 10_000
"""Leases, by who begins to wait: a fifth of a millisecond. More would take longer than the wait."""


def in_its_own_way(holds: Mapping[str, Hold], want: Want, context: object) -> Hold | None:
    """Something that this thread or task has taken, that excludes what it asks for, and that does
    not end by itself."""
    if context is None or len(holds) > LOOKED_THROUGH:  # no task of its loop; too many
        return None
    permits = want.permits
    for hold in list(holds.values()):
        if hold.claim.name != want.name or hold.renew_every is None or not hold.taken_by(context):
            continue
        if hold.claim.mode is want.mode is Mode.PERMITS:
            permits += hold.claim.permits
            if permits <= want.limit:
                continue
        return hold
    return None


def advice(own: Hold, want: Want) -> str:
    if own.claim.mode is want.mode is not Mode.PERMITS:
        return (
            "Locks with reentrant=True, in both places, would count it; if these are two things, "
            "give them two names"
        )
    return "Release that first"
