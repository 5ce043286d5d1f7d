"""`locks.barrier(name, parties)` for threads. Partner: `toolbox/barrier.py`, which decides."""

from __future__ import annotations

from holdfast.client import Client
from holdfast.core.options import checked_timeout
from holdfast.ports.thread import drive
from holdfast.toolbox import barrier

__all__ = ["Barrier"]


class Barrier:
    """Where a number of parties wait for one another, again and again."""

    def __init__(self, client: Client, plan: barrier.Plan) -> None:
        self._client = client
        self._plan = plan

    def wait(self, timeout: float | None = None) -> int:
        """Until all parties are here; the number of one's arrival, from 0. `BrokenBarrier` if one
        of them died, left or waited in vain. `timeout` as that of `Lock.acquire`: who waits in
        vain breaks it for all; 0 waits for nobody, and breaks nothing (`AcquireTimeout`)."""
        patience = self._plan.want.timeout if timeout is None else checked_timeout(timeout)
        party = barrier.Party(self._client._engine(), self._plan)
        try:
            return drive(party.run(patience))
        except BaseException:
            party.abandon()
            if party.generation is not None:
                party.engine.port.call(lambda _: drive(party.leave()), None)
            raise

    def abort(self) -> None:
        """Break it, for who waits and for who comes, until `reset()`."""
        drive(barrier.abort(self._client._engine(), self._plan))

    def reset(self) -> None:
        """Make it whole and empty; who waits gets `BrokenBarrier`."""
        drive(barrier.reset(self._client._engine(), self._plan))

    def waiting(self) -> int:
        """How many have arrived and wait. Old news when you read it."""
        return len(drive(barrier.state(self._client._engine(), self._plan)).arrived)

    def broken(self) -> bool:
        """Whether it is broken. Old news when you read it."""
        return bool(drive(barrier.state(self._client._engine(), self._plan)).broken)

    @property
    def name(self) -> str:
        """Its name."""
        return self._plan.name

    def __repr__(self) -> str:
        return f"<Barrier {self.name!r} parties={self._plan.parties}>"
