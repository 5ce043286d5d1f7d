"""Two of five masters are away: what an uncontended lock costs then, and what it did before.

Refused: the processes are gone. Stopped: they are black holes (SIGSTOP). Nobody is told; the first
turn after it is left out, because it finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.crew import PLACEMENTS, Crew, crews
from bench.scenarios.uncontended import FLOOR_OF
from bench.servers import Served
from bench.session import Case, Comparison, Goal, Plan, in_turns
from bench.stats import Figures, latencies

__all__ = ["run"]

NAME = "away"
AWAY = 2
FLOOR = FLOOR_OF["redlock"]
UP = "all up"


def kill(server: Served) -> None:
    for node in server.processes[:AWAY]:
        node.kill()


def pause(server: Served) -> None:
    for node in server.processes[:AWAY]:
        node.pause()


def restart(server: Served) -> None:
    for node in server.processes[:AWAY]:
        node.restart()


def resume(server: Served) -> None:
    for node in server.processes[:AWAY]:
        node.resume()


FAULTS: dict[str, tuple[Callable[[Served], None], Callable[[Served], None]]] = {
    "refused": (kill, restart),
    "stopped": (pause, resume),
}


def run(plan: Plan) -> Iterator[Case]:
    field = plan.field
    targets = [target for target in field.targets() if target.scheme == "redlock"]
    servers = [target.server for target in targets if target.server is not None]
    if not servers:
        return
    for fault, (begin, end) in FAULTS.items():
        with crews([*targets, field.floor(FLOOR)]) as everybody:
            for crew in everybody:
                crew.place(PLACEMENTS[0])
                crew.ask("cycles", name="one", seconds=0.0)
            before = in_turns(plan.pairs, everybody, lambda crew: _turn(plan, crew))
            begin(servers[0])
            try:
                for crew in everybody:
                    crew.ask("cycles", name="one", seconds=0.2)
                after = in_turns(plan.pairs, everybody, lambda crew: _turn(plan, crew))
            finally:
                end(servers[0])
        runs = after | {f"{label}, {UP}": figures for label, figures in before.items()}
        yield Case(
            NAME,
            f"two of five masters {fault}",
            PLACEMENTS[0],
            runs,
            [Comparison(label, f"{label}, {UP}", "p50") for label in after],
            [Goal(t.label, "p50", at_most=2.0, against=f"{t.label}, {UP}") for t in targets],
            {crew.entrant.label: crew.version for crew in everybody},
        )


def _turn(plan: Plan, crew: Crew) -> Figures:
    return latencies(crew.ask("cycles", name="one", seconds=plan.amount(0.2, 0.01))[0])
