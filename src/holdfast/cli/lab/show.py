"""`holdfast lab`: levels are played, shown, and summed up; the exit status says whether it is so.

Contract: a level succeeds if every form did what the level says of it: the naive one broke, ours
held. Anything else, an unclear one included, is said in red and makes the exit status 1. However it
ends, no process and no file stays behind. Partners: `scene.py`, `page.py`, `command.py`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

import holdfast
from holdfast.cli.lab.drawing import rows
from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import Finding, Form, Level
from holdfast.cli.lab.levels import LEVELS
from holdfast.cli.lab.resp import NoRedis, Redis, RedisError
from holdfast.cli.lab.scene import Scene
from holdfast.cli.lab.servers import Server, find_program, version
from holdfast.cli.lab.words import words
from holdfast.cli.outcome import FAILED, UNAVAILABLE, Ended
from holdfast.cli.screen import PALETTE, Row, Screen, open_screen
from holdfast.cli.stage import Stage
from holdfast.cli.troupe import Troupe, orderly_end

__all__ = ["Played", "Report", "as_json", "list_levels", "play"]


@dataclass(slots=True)
class Played:
    """One form of one level, and what became of it."""

    form: Form
    finding: Finding
    history: History
    rows: list[Row]
    began: float

    @property
    def ok(self) -> bool:
        return self.finding.outcome == self.form.expected


@dataclass(slots=True)
class Report:
    version: str  # of the server
    levels: list[tuple[Level, list[Played]]] = field(
        default_factory=list[tuple[Level, list[Played]]]
    )

    @property
    def ok(self) -> bool:
        return bool(self.levels) and all(one.ok for _, played in self.levels for one in played)


def list_levels() -> None:
    screen = open_screen()
    width = max(map(len, LEVELS)) + 2
    for level in LEVELS.values():
        screen.hang(Text(f"{level.name:<{width}}", "bold"), level.title)


def play(
    names: Sequence[str], redis: str | None, *, quiet: bool = False, pace: float = 1.0
) -> Report:
    """Play them on the server that is named, else on one of our own."""
    screen = open_screen(io.StringIO() if quiet else None)
    levels = [LEVELS[name] for name in names]
    if redis is not None and (
        killing := [one.name for one in levels if one.replicated or one.masters]
    ):
        find_program(
            f"the level {', '.join(killing)} kills its server, so it never uses the one you named, "
            "and there is no redis-server on PATH. Install it (Debian, Ubuntu: apt-get install "
            "redis-server), or play the other levels by their names"
        )
    with orderly_end():
        server = Server() if redis is None else None
        try:
            return _play(levels, redis or (server.url if server else ""), screen, pace)
        finally:
            if server is not None:
                server.close()


def _play(levels: Sequence[Level], url: str, screen: Screen, pace: float) -> Report:
    report = Report(_version(url))
    screen.paint(
        f"Redis {report.version}. Each level: a naive lock meets a fault and breaks, holdfast's "
        "meets the same and holds. Everything below happens now, in processes of its own."
    )
    troupe = Troupe(url, "holdfast.cli.lab.actor")
    try:
        with holdfast.connect(url, label="lab") as locks:
            stage = Stage(screen, troupe, locks, pace)
            for number, level in enumerate(levels, 1):
                _headline(screen, number, level)
                played = [_play_form(stage, level, form, url) for form in level.forms]
                report.levels.append((level, played))
                screen.print()
                screen.hang(Text("Why: ", "bold"), level.why)
    finally:
        troupe.close()
    _sum_up(screen, report)
    return report


def _version(url: str) -> str:
    try:
        Redis(url)  # says what is wrong with the URL
        return version(url)
    except NoRedis as error:
        raise Ended(
            FAILED,
            f"that is no Redis: {error}. Name one, --redis redis://host:6379/0, or leave --redis "
            "away: then the lab starts its own",
        ) from error
    except OSError as error:
        raise Ended(
            UNAVAILABLE, f"no Redis answers there ({error}). Is it up, and the URL right?"
        ) from error
    except RedisError as error:
        raise Ended(
            FAILED,
            f"Redis refuses: {error}. Are user and password right, redis://user:password@host, and "
            "may that user do everything?",
        ) from error


def _headline(screen: Screen, number: int, level: Level) -> None:
    screen.print()
    screen.paint(f"{number}. {level.title} ({level.name})", "bold")
    screen.paint(level.fault)


def _play_form(stage: Stage, level: Level, form: Form, url: str) -> Played:
    scene = Scene(stage, level, form, url)
    finding = scene.play()
    drawn = rows(scene.history, level.cast, scene.began)
    played = Played(form, finding, scene.history, drawn, scene.began)
    _verdict(stage.screen, played)
    return played


SIGNS = {"broken": "  x breaks: ", "held": "  + holds: ", "unclear": "  ? unclear: "}


def _verdict(screen: Screen, played: Played) -> None:
    outcome, text = played.finding.outcome, played.finding.text
    if played.ok:
        colour = "red" if outcome == "broken" else "green"
        screen.hang(Text(SIGNS[outcome], PALETTE[colour]), text)
    else:
        head = f"  ! NOT AS EXPECTED ({played.form.expected}): {outcome}: "
        screen.hang(Text(head, PALETTE["red"]), text, "red")


def _sum_up(screen: Screen, report: Report) -> None:
    screen.print()
    screen.paint("What this run showed", "bold")
    width = max((len(level.name) for level, _ in report.levels), default=0) + 2
    for level, played in report.levels:
        ok = all(one.ok for one in played)
        text = "; ".join(f"{one.form.name}: {one.finding.outcome}" for one in played)
        sign, colour = ("+", "green") if ok else ("! NOT AS EXPECTED", "red")
        screen.hang(Text(f"  {sign} {level.name:<{width}}", PALETTE[colour]), text)


def as_json(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "redis": report.version,
        "levels": [
            {
                "name": level.name,
                "title": level.title,
                "fault": level.fault,
                "why": level.why,
                "ok": all(one.ok for one in played),
                "forms": [_form_json(one) for one in played],
            }
            for level, played in report.levels
        ],
    }


def _form_json(one: Played) -> dict[str, Any]:
    return {
        "form": one.form.name,
        "written": one.form.text,
        "expected": one.form.expected,
        "outcome": one.finding.outcome,
        "text": one.finding.text,
        "events": [
            {
                "at": round(event.at - one.began, 4),
                "who": event.who,
                "what": event.what,
                "text": words(event),
            }
            for event in one.history.events
        ],
        "overlaps": [
            {
                "who": [overlap.who, overlap.other],
                "start": round(overlap.start - one.began, 4),
                "end": round(overlap.end - one.began, 4),
            }
            for overlap in one.history.overlaps()
        ],
    }
