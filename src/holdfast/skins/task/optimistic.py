"""`locks.optimistic(name)` for tasks. Partner: `toolbox/optimistic.py`, which decides."""

from __future__ import annotations

from holdfast.client import Client
from holdfast.toolbox import optimistic

__all__ = ["Optimistic"]


class Optimistic:
    """A version to be compared when the work is done; nothing is held meanwhile."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = optimistic.check(client.capabilities, name)

    async def version(self) -> int:
        """The version that is there now; 0 before the first commit."""
        return await optimistic.read(self._client._engine(), self.name)

    async def commit(self, version: int) -> int | None:
        """Replace this version; the new one, or None if somebody else has replaced it before.
        `Unavailable`: it is not known which."""
        return await optimistic.commit(self._client._engine(), self.name, version)
