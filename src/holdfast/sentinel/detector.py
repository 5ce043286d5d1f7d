"""The detector: who has been absent for its whole grace, and which of its claims are to be freed.

Contract: the detector's rules in docs/concepts/crash-detector.md, and nothing of any store: it has
a `Roll`. One `turn` is one look and what follows from it. Safe by the order of three things alone:
a claim's stamp is written down, *then* its client is absent in a look, *then* the grace passes;
what is freed must have that stamp. How often it looks makes it quick, not safe.
Partners: `core/presence.py`; `service.py`, which elects it and runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

from holdfast.core.lease import DRIFT
from holdfast.core.port import Port
from holdfast.core.presence import Look, Roll, Suspect, grace_of

__all__ = ["Detector"]

LOOKS = 10
"""In the smallest grace."""

OFTEN, SELDOM = 0.02, 0.25
"""Seconds between two looks."""

SHARE = 20
"""A look that takes t is not repeated within SHARE - 1 times t; nor is a search."""

SEARCH = 1.0
"""Seconds after which all locks are searched though nobody has disappeared: somebody may have come
and died between two looks."""

PATIENCE = 2.0
"""Seconds for a look, or for freeing so many as are freed at once."""

AT_ONCE = 100

SEARCHING = 60.0
"""Seconds for a search."""

COUNTERS = ("looks", "searches", "anew", "missing", "returned", "freed", "changed", "unknown")

Report = Callable[..., None]


class Detector:
    def __init__(self, port: Port, roll: Roll, report: Report) -> None:
        self._port = port
        self._roll = roll
        self._report = report
        self._ground: Hashable = None
        self._present: dict[str, Any] = {}
        self._suspects: dict[tuple[str, str], Suspect] = {}
        self._search_at = 0.0  # the next search is due
        self._search_after = 0.0  # and not before
        self._cost = 0.0  # of the last look
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    async def turn(self) -> float:
        """One look and what follows; when to look again. Raises `Unavailable`."""
        port = self._port
        begun = port.now()
        look = await self._look()
        self._cost = port.now() - begun
        if self._present.keys() - look.present.keys():
            self._search_at = 0.0  # somebody has disappeared
        self._present = dict(look.present)
        if begun >= max(self._search_at, self._search_after):
            await self._search()
        await self._free(begun)
        return self._next()

    async def close(self) -> None:
        await self._roll.close()

    def anew(self, why: str) -> None:
        """All suspicion begins anew (rule 3)."""
        self._ground = None
        self._suspects.clear()
        self._search_at = 0.0
        self.counters["anew"] += 1
        self._report("anew", why=why)

    async def _look(self) -> Look:
        self.counters["looks"] += 1
        try:
            look = await self._roll.look(self._port.now() + PATIENCE)
        except Exception as error:
            if self._ground is not None:
                self.anew(str(error))
            raise
        if look.ground != self._ground:
            if self._ground is not None:
                self.anew("the servers, or the connections to them, are others")
            self._ground = look.ground
        for key, suspect in list(self._suspects.items()):
            if suspect.presence in look.present:
                del self._suspects[key]
                if suspect.since < math.inf:
                    self.counters["returned"] += 1
                    self._report("returned", suspect)
        return look

    async def _search(self) -> None:
        """Write down the claims of all who are absent, then look again (rule 2)."""
        port = self._port
        begun = port.now()
        self.counters["searches"] += 1
        found = await self._roll.claims(self._present, begun + SEARCHING)
        known, self._suspects = self._suspects, {}
        for suspect in found:
            key = suspect.name, suspect.id
            before = known.get(key)
            if before is not None and before.stamp == suspect.stamp:
                suspect = before
            self._suspects[key] = suspect
        now = port.now()
        self._search_at = now + (SEARCH if self._roll.complete else self._often())
        self._search_after = now + (SHARE - 1) * (now - begun)
        if all(suspect.since <= now for suspect in self._suspects.values()):
            return
        look = await self._look()  # clears the suspects if it stands on another ground
        self._present = dict(look.present)
        now = port.now()
        for suspect in self._suspects.values():
            if suspect.since > now:
                suspect.since = now
                self.counters["missing"] += 1
                self._report("missing", suspect)

    def _due(self, suspect: Suspect) -> float:
        return suspect.since + grace_of(suspect.presence) * (1 + DRIFT)

    async def _free(self, looked: float) -> None:
        """Who was absent in a look that was sent after its grace had passed (rule 4)."""
        due = [suspect for suspect in self._suspects.values() if self._due(suspect) <= looked]
        if not due:
            return
        for first in range(0, len(due), AT_ONCE):
            some = due[first : first + AT_ONCE]
            results = await self._roll.free(some, self._port.now() + PATIENCE)
            now = self._port.now()
            for suspect, freed in zip(some, results, strict=True):
                self._suspects.pop((suspect.name, suspect.id), None)
                what = "unknown" if freed is None else "freed" if freed else "changed"
                self.counters[what] += 1
                self._report(what, suspect, absent=round(now - suspect.since, 3))
            if None in results:
                break  # the others are tried after another look
        self._search_at = 0.0  # what was renewed meanwhile, or came later, is still there

    def _often(self) -> float:
        smallest = min(map(grace_of, self._present), default=SELDOM * LOOKS)
        return min(max(smallest / LOOKS, OFTEN), SELDOM)

    def _next(self) -> float:
        now = self._port.now()
        regular = now + max(self._often(), (SHARE - 1) * self._cost)
        due = min(map(self._due, self._suspects.values()), default=regular)
        return max(now, min(regular, due))
