"""`locks.multi(...)` for threads. Partner: `toolbox/multi.py`, which decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core.acquire import Engine
from holdfast.core.handle import Taking
from holdfast.core.options import Want
from holdfast.skins.thread.lock import Acquirable, BaseLease
from holdfast.toolbox.multi import MultiAcquisition, MultiHandle

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["MultiLease", "MultiLock"]


class MultiLease(MultiHandle, BaseLease):
    """An exclusive lease of several names, which stand and fall together."""

    __slots__ = ()


class MultiLock(Acquirable[MultiLease]):
    """Several locks as one: all or none."""

    __slots__ = ("_wants",)
    _lease = MultiLease

    def __init__(self, client: Locks, wants: Sequence[Want]) -> None:
        super().__init__(client, wants[0])
        self._wants = wants

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once, in the order in which they are taken."""
        return tuple(want.name for want in self._wants)

    @property
    def name(self) -> str:
        """The names, as one text."""
        return ", ".join(self.names)

    def locked(self) -> bool:
        """Whether anybody, anywhere, holds one of these names now. Old news when you read it."""
        return any(
            info.holders for name in self.names for info in self._client._inspect(name, exact=True)
        )

    def _acquisition(self, engine: Engine) -> Taking:
        return MultiAcquisition(engine, self._wants)
