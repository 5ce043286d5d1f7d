"""Which holds a thread or task may enter again: counted here, in the client, not in the store.

Contract: keyed by (name, mode) and a *weak* reference to the thread or task itself. Thread idents
are reused by the operating system, so a new thread could inherit a dead one's locks (a hazard that
was shown by a run); an object that dies with its thread cannot be mistaken. So is what it reads, of
reentrant locks or not: to ask for the same name as a writer would be to wait for oneself.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from holdfast.core.hold import Hold
from holdfast.types import Mode

__all__ = ["Reentry"]


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

    def reading(self, name: str, context: object) -> bool:
        held = self.readers.get(context) if context is not None else None
        return held is not None and any(
            hold.claim.name == name and not hold.end for hold in list(held)
        )
