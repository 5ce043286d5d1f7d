"""`locks.stripes(name, count)` for threads. Partner: `toolbox/stripes.py`, which decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.acquire import Engine
from holdfast.core.handle import Taking
from holdfast.core.options import Want
from holdfast.skins.thread.lock import Acquirable, Lease, Lock
from holdfast.skins.thread.multi import MultiLock
from holdfast.toolbox.stripes import AnyAcquisition, Lines, index_of

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["AnyStripe", "StripeLease", "Stripes"]


class StripeLease(Lease):
    """An exclusive lease of one stripe."""

    __slots__ = ()
    _share: AnyAcquisition

    @property
    def stripe(self) -> int:
        """Which one: from 0 on."""
        return self._share.stripe


class AnyStripe(Acquirable[StripeLease]):
    """Whichever stripe is free first."""

    __slots__ = ("_stripes",)
    _lease = StripeLease

    def __init__(self, client: Locks, stripes: Stripes, want: Want) -> None:
        super().__init__(client, want)
        self._stripes = stripes

    @property
    def name(self) -> str:
        """The name that the stripes are of."""
        return self._stripes.name

    def locked(self) -> bool:
        """Whether all stripes are held, by anybody, anywhere. Old news when you read it."""
        for want in self._stripes._every():
            if not any(info.holders for info in self._client._inspect(want.name, exact=True)):
                return False
        return True

    def _acquisition(self, engine: Engine) -> Taking:
        return AnyAcquisition(self._stripes._lines(engine), self._want.on_lost)


class Stripes:
    """One resource in segments that are locked one by one."""

    def __init__(self, client: Locks, name: str, count: int, want: Callable[[int], Want]) -> None:
        self._client = client
        self._want = want
        self._wants: list[Want] = []
        self._waiting: Lines | None = None
        self._name = name
        self._count = count

        want(0)  # what is wrong with the name or the options is said now

    @property
    def name(self) -> str:
        """The name that the stripes are of."""
        return self._name

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def index(self, key: str | bytes | int) -> int:
        """Which stripe a key belongs to: the same in every process and version."""
        return index_of(key, self._count)

    def of(self, key: str | bytes | int) -> Lock:
        """The lock of the stripe that this key belongs to."""
        return Lock(self._client, self._want(self.index(key)))

    def any(self) -> AnyStripe:
        """Whichever is free; if none is, whichever is free first."""
        return AnyStripe(self._client, self, self._every()[0])

    def all(self) -> MultiLock:
        """All of them at once."""
        return MultiLock(self._client, sorted(self._every(), key=lambda want: want.name))

    def _every(self) -> list[Want]:
        if not self._wants:
            self._wants = [self._want(number) for number in range(self._count)]
        return self._wants

    def _lines(self, engine: Engine) -> Lines:
        """Where whoever waits for any of them waits; of this process, not of its parent."""
        lines = self._waiting
        if lines is None or lines.engine is not engine:
            made = Lines(engine, [replace(want, on_lost=None) for want in self._every()])
            with engine.port.mutex():  # threads that come at once must wait in the same
                lines = self._waiting
                if lines is None or lines.engine is not engine:
                    lines = self._waiting = made
        return lines

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} count={self._count}>"
