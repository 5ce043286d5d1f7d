"""`locks.multi(...)` for tasks. Partner: `toolbox/multi.py`, which decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core.acquire import Engine
from holdfast.core.handle import Taking
from holdfast.core.options import Want
from holdfast.skins.task.lock import Acquirable, BaseLease
from holdfast.toolbox.multi import MultiAcquisition, MultiHandle

if TYPE_CHECKING:
    from holdfast.aio import Locks

__all__ = ["MultiLease", "MultiLock"]


class MultiLease(MultiHandle, BaseLease):
    """An exclusive lease of several names, which stand and fall together."""

    __slots__ = ()


class MultiLock(Acquirable[MultiLease]):
    """Several locks as one: all or none."""

    __slots__ = ("_wants",)
    _lease = MultiLease

    def __init__(self, client: Locks, wants: Sequence[Want], cancel_on_lost: bool) -> None:
        super().__init__(client, wants[0], cancel_on_lost)
        self._wants = wants

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once, in the order in which they are taken."""
        return tuple(want.name for want in self._wants)

    @property
    def name(self) -> str:
        """The names, as one text."""
        return ", ".join(self.names)

    async def locked(self) -> bool:
        """Whether anybody, anywhere, holds one of these names now. Old news when you read it."""
        for name in self.names:
            if any(info.holders for info in await self._client._inspect(name, exact=True)):
                return True
        return False

    def _acquisition(self, engine: Engine) -> Taking:
        return MultiAcquisition(engine, self._wants)
