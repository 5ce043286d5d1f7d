"""What is owed: claims to be withdrawn until the store confirms that nothing is left of them.

Contract: a dictionary, owner to claim, into which single operations put and from which they take;
`pay` withdraws, oldest first, within the time that it is given. Law 3: what could not be confirmed
stays owed. Partner: `core/keeper.py`, whose loop pays, and leaves it little time: leases wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from holdfast.core.agenda import TICK
from holdfast.core.backend import Backend
from holdfast.core.backoff import pause
from holdfast.core.port import Port
from holdfast.errors import HoldfastError
from holdfast.types import Claim, Released, Unknown

__all__ = ["Debts"]

log = logging.getLogger("holdfast")

BRIEFLY = TICK / 4
"""How long the loop pays at a time, if that may be enough."""


class Debts(dict[str, Claim]):
    def __init__(self, port: Port, backend: Backend, settle: Callable[[Claim], None]) -> None:
        super().__init__()
        self._port = port
        self._backend = backend
        self._settle = settle
        self._not_before = 0.0
        self._failures = 0  # rounds in a row in which a payment failed
        self._far = False  # the store was slow to answer the last one: it needs more time

    @property
    def due(self) -> float:
        """When to pay next."""
        return self._not_before if self else math.inf

    async def pay_some(self, latest: float) -> None:
        """For a moment, or, if the store may be far away, until `latest`, a tick at most."""
        now = self._port.now()
        longer = self._far or self._failures % 4 == 3
        stop = min(now + TICK, latest) if longer else now
        await self.pay(max(now + BRIEFLY, stop))

    async def pay(self, stop: float) -> None:
        """What fails goes to the end of the line, and after a few failures we come back later."""
        port, failed = self._port, 0
        for claim in list(self.values()):
            now = port.now()
            if now < self._not_before:
                return
            if now >= stop:
                if failed:
                    self._later()
                return
            try:
                result = await self._backend.withdraw(claim, True, min(now + TICK, stop))
            except HoldfastError as error:  # unreachable, or it refuses us by now
                result = Unknown(str(error))
            except Exception:
                log.exception("a clean-up failed unexpectedly; it is tried again")
                result = Unknown("unexpected error")
            if isinstance(result, Released):
                self._far = port.now() - now > BRIEFLY / 2
                self._settle(claim)
                continue
            if self.pop(claim.owner, None) is not None:
                self[claim.owner] = claim
            failed += 1
            if failed == 3 or failed == len(self):
                self._later()
                return
        self._failures = 0

    def _later(self) -> None:
        self._failures += 1
        self._not_before = self._port.now() + pause(self._failures, self._port.random(), math.inf)

    async def flush(self, deadline: float) -> None:
        """Pay until nothing is owed or the deadline passed."""
        while self:
            self._not_before = 0.0
            await self.pay(deadline)
            left = deadline - self._port.now()
            if not self or left <= 0:
                return
            await self._port.sleep(min(left, pause(self._failures, self._port.random(), left)))
