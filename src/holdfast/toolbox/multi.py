"""Several locks as one: all or none, on every store.

Contract: a multi holds all of its names or none, with a fencing token for each. They are taken in
the order of their code points, by everybody alike, so that no two clients wait for one another,
whatever order they were named in; a name that is given twice counts once. Where the store can, all
are taken in one step if all are free. What was taken stands and falls together
(`Hold.together`): the loss of one is the loss of all, and the others are given back.

Hazards: who waits for the second holds the first, which is kept alive meanwhile, also if the leases
are fixed; those are given their whole ttl when the last one is had. And the first may be lost while
the second is waited for: then nothing was held, and all are asked for again.
Partners: `core/acquire.py`, which takes each of them; `skins/*/multi.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.acquire import Acquisition, Engine
from holdfast.core.backend import Together
from holdfast.core.deadline import deadline_of, left_of
from holdfast.core.handle import Handle
from holdfast.core.hold import Hold
from holdfast.core.names import checked_name
from holdfast.core.options import Want
from holdfast.errors import LeaseLost, Misconfigured, NotHeld, Unavailable, Unsupported
from holdfast.types import Busy, TxnGuard, Unknown

__all__ = ["MultiAcquisition", "MultiHandle", "check_alone", "sorted_names"]

MOST = 1024
"""Each name is a lease to be kept; who needs more wants one lock over all of them."""

LOST_IN_TAKING = 3
"""So often one may be lost before the last is had, until that is said."""


def sorted_names(names: Sequence[Any]) -> list[str]:
    """Each once, in the order in which everybody takes them."""
    if not names:
        raise Misconfigured('multi() needs at least one name: locks.multi("a", "b")')
    if isinstance(names[0], Iterable) and not isinstance(names[0], str | bytes):
        raise Misconfigured("multi() takes the names one by one: locks.multi(*names)")
    unique = sorted({checked_name(name) for name in names})
    if len(unique) > MOST:
        raise Misconfigured(
            f"multi() with {len(unique)} names: {MOST} at most; use one lock for all"
        )
    return unique


def check_alone(want: Want, what: str) -> None:
    """A lease of several names, or of any of several, cannot be entered again."""
    if want.reentrant:
        raise Misconfigured(f"{what} cannot be reentrant: pass its lease on, or take it once")


class MultiAcquisition:
    """As `Acquisition`, for several names. `want` is the one to blame if it fails."""

    __slots__ = ("engine", "members", "want", "wants")

    def __init__(self, engine: Engine, wants: Sequence[Want]) -> None:
        self.engine = engine
        self.wants = wants
        self.want = wants[0]
        self.members: list[Acquisition] = []

    def abandon(self) -> None:
        for member in self.members:
            member.abandon()

    def own(self) -> Hold | None:
        """Of the one to blame."""
        return self.engine.own(self.want)

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        port = self.engine.port
        if self.want.on_lost is not None:
            port.prepare_call()
        deadline = deadline_of(port, timeout) if blocking else math.inf
        for _ in range(LOST_IN_TAKING):
            self.members = [self._member(want) for want in self.wants]
            taken = await self._at_once(deadline)
            whole = bool(taken)  # each has its ttl from now on
            if not taken:
                taken, busy = await self._one_by_one(blocking, deadline)
                if busy is not None:
                    await self._give_back(taken)
                    return busy
            if await self._joined(taken, whole):
                if self.engine.closed or self.engine.keeper.exiting:
                    await self.members[0].refuse()
                return taken[0]
            await self._give_back(taken)
        raise Unavailable(
            f"{self.want.name!r} was lost {LOST_IN_TAKING} times while the others of the multi "
            f"were taken: a ttl of {self.want.ttl:g} s is too short for this store, or somebody "
            "evicts it"
        )

    def _member(self, want: Want) -> Acquisition:
        member = Acquisition(self.engine, want)  # its claim says whether the lease is fixed
        every = want.ttl / 3 if want.renew_every is None else want.renew_every
        member.want = replace(want, renew_every=every, on_lost=None)
        return member

    async def _at_once(self, deadline: float) -> list[Hold]:
        """The uncontended path, where the store has it: one round trip. Empty if they were not to
        be had so; if there was no answer, asking for each finds out what became of it (law 2)."""
        engine, members = self.engine, self.members
        backend = engine.backend
        if len(members) == 1 or not isinstance(backend, Together):
            return []
        for member in members:
            if not member.begin():
                await member.refuse()
        sent = engine.port.now()
        claims = [member.claim for member in members]
        limit = min(sent + engine.request_timeout, deadline)
        try:
            result = await backend.attempt_together(claims, limit)
        except Unavailable:  # surely not applied: who is asked alone says it in full
            result = Busy()
        if isinstance(result, Busy):
            for claim in claims:
                engine.keeper.settle(claim)
            return []
        if isinstance(result, Unknown):
            for claim in claims:
                claim.unanswered = True
            if engine.port.now() >= deadline:
                raise Unavailable(
                    f"could not acquire {self.want.name!r} and the others of its multi in time: "
                    f"the store did not answer ({result.reason}). Whatever may have reached it is "
                    "being withdrawn"
                )
            return []
        return [member.hold(grant, sent) for member, grant in zip(members, result, strict=True)]

    async def _one_by_one(self, blocking: bool, deadline: float) -> tuple[list[Hold], Busy | None]:
        """What was taken, and who was in the way of the rest."""
        taken: list[Hold] = []
        for member in self.members:
            left = left_of(self.engine.port, deadline)
            outcome: Hold | Busy = Busy()  # the time was over before it was this one's turn
            if left != 0:
                outcome = await member.run(blocking, left)
            if isinstance(outcome, Busy):
                self.want = member.want
                return taken, outcome
            taken.append(outcome)
        return taken, None

    async def _joined(self, taken: list[Hold], whole: bool) -> bool:
        """From here on they are one. False if one of them was lost before."""
        engine, want = self.engine, self.wants[0]
        together = tuple(taken)
        for hold in taken:
            hold.together = together
        engine.check_deadline(taken[0])
        if any(hold.end for hold in taken):  # looked at after joining: so who loses one sees all
            return False
        if not all(engine.keeper.wants(hold.claim) for hold in taken):  # withdrawn on their way
            return False
        if want.renew_every is None and not await self._fixed(taken, whole):
            return False
        if want.on_lost is not None:
            taken[0].listen(self, want.on_lost, engine.port)
        return True

    async def _fixed(self, taken: list[Hold], whole: bool) -> bool:
        """They were kept alive until the last one was there: from here on nobody renews them, and
        each has its whole ttl."""
        for hold in taken:
            hold.renew_every, hold.renew_at = None, math.inf
        try:
            if not whole:
                await self.engine.renew(taken[0])
        except (LeaseLost, NotHeld):
            return False
        return True

    async def _give_back(self, taken: list[Hold]) -> None:
        for hold in reversed(taken):
            await self.engine.release(hold, self)
        self.abandon()  # what of the others may have reached the store


class MultiHandle(Handle):
    """What a lease of several names is beyond a lease of one."""

    __slots__ = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were taken."""
        return tuple(hold.claim.name for hold in self._hold.together)

    @property
    def name(self) -> str:
        """The names, as one text."""
        return ", ".join(self.names)

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each name; each is for the resource that this name guards."""
        fences = {hold.claim.name: hold.fence for hold in self._hold.together}
        known = {name: fence for name, fence in fences.items() if fence is not None}
        if len(known) < len(fences):
            raise Unsupported(
                "this backend gives no fencing token for exclusive claims; see "
                "`locks.capabilities.fencing`"
            )
        return known

    @property
    def uncertain(self) -> bool:
        """As that of a lease; one name is enough."""
        now, hold = self._engine.port.now(), self._hold
        return (
            not self._done
            and not hold.end
            and any(each.certain_until <= now for each in hold.together)
            and all(now < each.until for each in hold.together)
            and hold.incarnation == self._engine.port.incarnation()
        )

    def remaining(self) -> float:
        """Seconds for which all of them are valid if they are not renewed again; 0 when over."""
        hold, port = self._hold, self._engine.port
        if self._done or hold.end or hold.incarnation != port.incarnation():
            return 0.0
        return max(0.0, min(each.until for each in hold.together) - port.now())

    def txn_guard(self) -> TxnGuard:
        """There is none for several names: `Unsupported`."""
        raise Unsupported("a lease of several names has no one guard; have each fence checked")
