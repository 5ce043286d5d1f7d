"""The registry: what can be measured. A scenario is one function of a plan and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.measure import Plan, Result
from bench.scenarios import crowd, handover, held, plumbing

__all__ = ["SCENARIOS"]

SCENARIOS: dict[str, Callable[[Plan], Iterator[Result]]] = {
    "plumbing": plumbing.run,
    "held": held.run,
    "handover-threads": handover.run_threads,
    "handover-asyncio": handover.run_tasks,
    "crowd": crowd.run,
}
