"""The payer: says the farewells that nodes did not acknowledge, when they are there again.

Contract: every request of a client pays what it owes to the nodes that it asks. This is for a
client that asks nothing any more: a thread, or task, that lives only while something is owed, and
looks when a node may be tried again. A debt ends with the lease that it is about.
Law kept here: 3 (what could not be confirmed is owed until it is). Partner: `nodes.py`.
"""

from __future__ import annotations

import logging

from holdfast.backends.redis.transport import RENEWALS
from holdfast.backends.redis.wire import pack
from holdfast.backends.redlock.ballot import Everybody
from holdfast.backends.redlock.council import Council
from holdfast.backends.redlock.letters import Letter
from holdfast.core.port import Port, Task

__all__ = ["Payer"]

log = logging.getLogger("holdfast")

SOON = 0.02
"""Seconds between two rounds, at least: whoever asks something meanwhile pays for it."""


class Ping(Letter):
    """Nothing to say but what is owed."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.count = 1
        self.data = pack("PING")


class Payer:
    def __init__(self, port: Port, council: Council, patience: float) -> None:
        self._port = port
        self._council = council
        self._patience = patience
        self._stop = port.event()
        self._task: Task | None = None
        self._busy = False
        for member in council.members:
            member.on_debt = self._begin

    def _begin(self) -> None:
        """Something is owed. Never waits."""
        with self._port.mutex():
            if not (self._busy or self._stop.is_set()):
                self._start()

    def _start(self) -> None:
        started = False
        try:
            self._busy = True
            self._task = self._port.task(self._run, self._farewell, "holdfast-payer")
            self._task.start()
            started = True
        except RuntimeError:  # there is no thread for it, or the interpreter is exiting
            pass
        finally:
            # Whoever owes next tries again, whoever asks something pays meanwhile, and what is owed
            # ends with its lease. So it is no matter if an interrupt struck here.
            if not started:
                self._busy = False

    async def _farewell(self) -> None:
        """The interpreter exits: once more, as far as it goes at once."""
        await self._pay()

    async def _run(self) -> None:
        port = self._port
        try:
            while (at := self._due()) is not None:
                if await self._stop.wait(max(at, port.now() + SOON)):
                    return
                try:
                    await self._pay()
                except Exception:
                    log.exception("paying what is owed to nodes failed unexpectedly")
                    await port.sleep(self._patience)
        finally:
            self._busy = False

    def _due(self) -> float | None:
        """When the next node may be tried; None: nothing is owed, and whoever owes begins anew."""
        with self._port.mutex():
            owed = [member for member in self._council.members if member.debts]
            self._busy = bool(owed)
            return min((member.retry_at for member in owed), default=None)

    async def _pay(self) -> None:
        members, now = self._council.members, self._port.now()
        places = [
            place
            for place, member in enumerate(members)
            if member.debts and member.retry_at <= now and member.forgive(now)
        ]
        if places:
            ballot = Everybody(len(members), len(places))
            await self._council.ask(Ping(), ballot, now + self._patience, RENEWALS, places)

    async def close(self) -> None:
        """Once more, for those that can be reached."""
        self._stop.set()
        if self._task is not None:
            await self._task.join(self._port.now() + 2 * self._patience)
        await self._council.settle()
        await self._pay()
