"""From the record of a scene to the rows of its timeline.

Contract: pure; what is drawn is what was recorded. Partners: `screen.py`, which draws rows in a
terminal; `svg.py`, which draws the same rows on a page.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.lab.history import Event, History
from holdfast.cli.screen import Row, Span
from holdfast.cli.stage import COLOURS

__all__ = ["BOTH", "rows"]

BOTH = "two at once"
MARK = 0.06
"""How long the mark of a death is, in seconds."""


def rows(history: History, cast: Sequence[str], began: float) -> list[Row]:
    """One for each actor and each server that was killed, and one for two at once."""
    killed = (event.who for event in history.events if event.what == "killed")
    servers = [who for who in dict.fromkeys(killed) if who not in cast]
    drawn = {who: Row(who, COLOURS.get(who, "grey")) for who in (*cast, *servers)}
    for event in history.events:
        if row := drawn.get(event.who):
            _draw(row, event, event.at - began)
    clashes = [Span("clash", o.start - began, o.end - began) for o in history.overlaps()]
    return [*drawn.values(), *([Row(BOTH, "red", clashes)] if clashes else ())]


def _draw(row: Row, event: Event, moment: float) -> None:
    holding = bool(row.spans) and row.spans[-1].end is None and row.spans[-1].kind != "wait"
    match event.what:
        case "wait":
            row.begin("wait", moment)
        case "hold":
            row.begin("hold", moment)
        case "stopped" if holding:
            row.begin("paused", moment)
        case "woken" if holding:
            row.begin("hold", moment)
        case "look" if holding and not event.figures["held"]:
            _over(row, moment)
        case "lost" if holding:
            _over(row, moment)
        case "killed":
            row.begin("dead", moment)
            row.end(moment + MARK)
        case "free" | "gave up" | "failed":
            row.end(moment)
        case _:
            pass


def _over(row: Row, moment: float) -> None:
    """Its lease is over. If it learns that on waking up, it was over all the while."""
    kinds = [span.kind for span in row.spans]
    if kinds[-2:] == ["paused", "hold"]:
        row.spans[-1].kind = "stale"
    elif kinds[-1] == "hold":
        row.begin("stale", moment)
