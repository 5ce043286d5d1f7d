"""The service around the detector: elected through a lock of the store, so that several may run.

Contract: `Sentinel.run` goes on until it is interrupted; whatever the store does is reported, and
tried again, within a second: who died meanwhile is not freed. One at a time leads and detects, the
others stand in line for its lock. That is thrift: two who detect at once are safe, too. The
leader's counters are in a cell that expires by itself.
Partners: `detector.py`; `cli/sentinel.py`, which prints what is reported.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.core.acquire import Engine
from holdfast.core.backoff import pause
from holdfast.core.names import shown
from holdfast.core.presence import Detectable, Suspect, detectable, grace_of
from holdfast.errors import HoldfastError, LeaseLost, Unavailable
from holdfast.ports.thread import drive
from holdfast.sentinel.detector import Detector
from holdfast.sync import Lease, Locks, connect
from holdfast.toolbox.values import understood

__all__ = ["Event", "Sentinel", "status"]

NAME = "holdfast:sentinel"
"""The lock that is held by who leads, and the cell with its counters."""

TTL = 3.0
"""Seconds after which the next one leads if the leader has died."""

PUBLISH = 1.0
"""Seconds between two writings of the counters."""

REMEMBERED = 10.0
"""Seconds for which they are to be seen."""


@dataclass(frozen=True, slots=True)
class Event:
    """What was seen or done, and when (wall clock)."""

    time: float
    event: str
    name: str = ""
    id: str = ""
    holder: str = ""
    presence: str = ""
    grace: float | None = None
    absent: float | None = None
    why: str = ""

    def document(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}


WHY = {
    "missing": "its client is in no list of the store's clients",
    "returned": "its client is seen again",
    "freed": "its client was absent for its whole grace, and the claim not renewed meanwhile",
    "changed": "it was renewed or released meanwhile, and is left alone",
    "unknown": "the store did not say whether it was freed",
}


class Sentinel:
    def __init__(self, url: str | None, report: Callable[[Event], None]) -> None:
        self._url = url
        self._report = report
        self._began = time.time()

    def run(self) -> None:
        """For ever; ends by an exception only."""
        failures = 0
        with _connect(self._url) as locks:
            backend = detectable(locks._current.backend, str(locks._url))
            lock = locks.lock(NAME, ttl=TTL)
            self._say("standby", why="waiting to lead")
            while True:
                try:
                    with lock as lease:
                        failures = 0
                        self._lead(locks._current, backend, lease)
                except (Unavailable, LeaseLost) as error:
                    failures += 1
                    self._say("standby", why=str(error))
                    time.sleep(pause(failures, locks._current.port.random(), math.inf))

    def _lead(self, engine: Engine, backend: Detectable, lease: Lease) -> None:
        self._say("leading")
        self._began = time.time()
        port = engine.port
        detector = Detector(port, backend.roll(), self._of_claim)
        published, failures = 0.0, 0
        try:
            while lease.held:
                try:
                    again = drive(detector.turn())
                    failures = 0
                except Unavailable as error:
                    failures += 1
                    again = port.now() + pause(failures, port.random(), math.inf)
                    if failures == 1:
                        self._say("error", why=str(error))
                if port.now() >= published + PUBLISH:
                    published = port.now()
                    self._publish(engine, lease, detector.counters)
                lease.lost.wait(max(0.0, again - port.now()))
        finally:
            drive(detector.close())

    def _publish(self, engine: Engine, lease: Lease, counters: Mapping[str, int]) -> None:
        document = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "leading": round(time.time() - self._began, 1),
            "counters": dict(counters),
        }
        value = json.dumps(document).encode()
        limit = engine.port.now() + TTL / 6
        try:  # the fence: one who has been succeeded does not write over its successor's
            drive(
                engine.backend.cell_write(
                    NAME, value, expect=None, fence=lease.fence, ttl=REMEMBERED, deadline=limit
                )
            )
        except HoldfastError:
            pass  # a look that fails says more

    def _of_claim(
        self,
        event: str,
        suspect: Suspect | None = None,
        *,
        absent: float | None = None,
        why: str = "",
    ) -> None:
        if suspect is None:
            self._say(event, why=why)
            return
        info, grace = suspect.info, grace_of(suspect.presence)
        self._report(
            Event(
                round(time.time(), 3),
                event,
                suspect.name,
                suspect.id,
                shown(info),
                suspect.presence,
                None if math.isinf(grace) else grace,
                absent,
                WHY[event],
            )
        )

    def _say(self, event: str, why: str = "") -> None:
        self._report(Event(round(time.time(), 3), event, why=why))


def status(url: str | None) -> dict[str, Any]:
    """Who leads, who stands by, and the leader's counters (None: there are none to be seen)."""
    with _connect(url) as locks:
        engine = locks._current
        detectable(engine.backend, str(locks._url))
        running = [info for info in locks._inspect(NAME, exact=True) if info.name == NAME]
        limit = engine.port.now() + engine.request_timeout
        there = engine.backend.capabilities.cells
        cell = drive(engine.backend.cell_read(NAME, limit)) if there else None
    told: Mapping[str, Any] = {"leading": None, "counters": None}
    if cell is not None:
        with understood(NAME):
            document = json.loads(cell.value)
            told = {"leading": float(document["leading"]), "counters": dict(document["counters"])}
    return {
        "leader": [dict(claim.info) for info in running for claim in info.holders],
        "standby": [dict(claim.info) for info in running for claim in info.waiters],
        **told,
    }


def _connect(url: str | None) -> Locks:
    return connect(url, crash_grace=0)  # whatever the URL, which is the clients', says
