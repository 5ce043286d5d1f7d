"""`locks.latch(name, count)` for threads. Partner: `toolbox/latch.py`, which decides."""

from __future__ import annotations

from holdfast.client import Client
from holdfast.core.options import checked_timeout
from holdfast.ports.thread import drive
from holdfast.toolbox import latch

__all__ = ["Latch"]


class Latch:
    """Opens when it was counted down so many times, and stays open."""

    def __init__(self, client: Client, plan: latch.Plan) -> None:
        self._client = client
        self._plan = plan

    def count_down(self, n: int = 1) -> int:
        """Count; how many are left then. An open latch stays as it is."""
        return drive(latch.count_down(self._client._engine(), self._plan, n))

    def wait(self, timeout: float | None = None) -> bool:
        """True when it is open; False when time ran out. `timeout` as that of `Lock.acquire`."""
        patience = self._plan.timeout if timeout is None else checked_timeout(timeout)
        return drive(latch.wait(self._client._engine(), self._plan, patience))

    def count(self) -> int:
        """How many are left."""
        return drive(latch.count(self._client._engine(), self._plan))

    @property
    def name(self) -> str:
        """Its name."""
        return self._plan.name

    def __repr__(self) -> str:
        return f"<Latch {self.name!r} count={self._plan.count}>"
