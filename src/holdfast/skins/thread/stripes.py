"""`locks.stripes(name, count)` for threads. Partner: `toolbox/stripes.py`, which decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.acquire import Engine
from holdfast.core.handle import Taking
from holdfast.core.misuse import InParts
from holdfast.core.options import Want
from holdfast.skins.thread.lock import Acquirable, Lease, Lock
from holdfast.skins.thread.multi import MultiLock
from holdfast.toolbox.stripes import AnyAcquisition, Striped, StripeHandle

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["AnyStripe", "StripeLease", "Stripes"]


class StripeLease(StripeHandle, Lease):
    """An exclusive lease of one stripe."""

    __slots__ = ()


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


class Stripes(InParts, Striped):
    """One resource in segments that are locked one by one."""

    _parts = "of(key), any() or all()"

    def __init__(self, client: Locks, name: str, count: int, want: Callable[[int], Want]) -> None:
        super().__init__(name, count, want)
        self._client = client

    def of(self, key: str | bytes | int) -> Lock:
        """The lock of the stripe that this key belongs to."""
        return Lock(self._client, self._want(self.index(key)))

    def any(self) -> AnyStripe:
        """Whichever is free; if none is, whichever is free first."""
        return AnyStripe(self._client, self, self._every()[0])

    def all(self) -> MultiLock:
        """All of them at once."""
        return MultiLock(self._client, self._in_order())
