"""The registry: what can be measured. A scenario is one function of a plan and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.scenarios import (
    abreast,
    away,
    crash,
    crowd,
    drain,
    election,
    handover,
    held,
    imports,
    once,
    stripes,
    uncontended,
    waiting,
)
from bench.session import Case, Plan

__all__ = ["SCENARIOS"]

SCENARIOS: dict[str, Callable[[Plan], Iterator[Case]]] = {
    "uncontended": uncontended.run,
    "abreast": abreast.run,
    "handover-threads": handover.threads,
    "handover-processes": handover.processes,
    "handover-tasks": handover.tasks,
    "drain": drain.run,
    "crowd": crowd.run,
    "waiting": waiting.run,
    "crash": crash.run,
    "held": held.run,
    "away": away.run,
    "imports": imports.run,
    "stripes": stripes.run,
    "once": once.run,
    "election": election.run,
}
