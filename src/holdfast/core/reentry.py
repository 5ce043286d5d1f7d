"""Which holds a thread or task may enter again: counted here, in the client, not in the store.

Contract: keyed by (name, mode) and a *weak* reference to the thread or task itself. Thread idents
are reused by the operating system, so a new thread could inherit a dead one's locks (a hazard that
was shown by a run); an object that dies with its thread cannot be mistaken.
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

    def find(self, name: str, mode: Mode, context: object) -> Hold | None:
        holds = self._by_context.get(context)
        return None if holds is None else holds.get((name, mode))

    def remember(self, hold: Hold, context: object) -> None:
        # Only the context itself writes its own entry, so this needs no lock.
        holds = self._by_context.get(context)
        if holds is None:
            holds = self._by_context[context] = {}
        hold.entry = holds  # what `Hold.forget` undoes
        holds[hold.claim.name, hold.claim.mode] = hold
