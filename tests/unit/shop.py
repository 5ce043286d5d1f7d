"""A memory store on a fake clock, for the tests of its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.backends.local import Gone, Held, InLine
from holdfast.backends.memory import Store
from holdfast.types import Claim, Mode

__all__ = ["TTL", "Shop", "readers"]

TTL = 10.0


class Shop:
    """A store with its clocks, and what it told whom."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall = 50.0
        self.store = Store(lambda: self.now, lambda: self.wall)
        self.calls: list[tuple[str, Held | None]] = []
        self._made = 0

    def claim(self, name: str = "n", mode: Mode = Mode.EXCLUSIVE, **more: Any) -> Claim:
        self._made += 1
        return Claim(name, f"owner-{self._made}", mode, **{"ttl": TTL, **more})

    def enlist(self, claim: Claim) -> Callable[[Held | None], None]:
        return lambda held: self.calls.append((claim.owner, held))

    def takes(self, *args: Any, **more: Any) -> Claim:
        """A new claim that gets it at once."""
        claim = self.claim(*args, **more)
        assert isinstance(self.attempt(claim), Held)
        return claim

    def waits(self, *args: Any, **more: Any) -> Claim:
        """A new claim that has to stand in line."""
        claim = self.claim(*args, **more)
        assert isinstance(self.attempt(claim), InLine)
        return claim

    def attempt(self, claim: Claim, queue: bool = True) -> Held | InLine | Gone:
        return self.store.attempt(claim, self.enlist if queue else None)

    def granted(self) -> list[str]:
        """Who was called since the last look, because it holds."""
        called = [owner for owner, held in self.calls if held is not None]
        self.calls.clear()
        return called

    def holds(self, claim: Claim) -> bool:
        return isinstance(self.store.look(claim), Held)


def readers(shop: Shop, count: int) -> list[Claim]:
    return [shop.takes(mode=Mode.SHARED) for _ in range(count)]
