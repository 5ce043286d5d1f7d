"""The terminal: colours that may be absent, lines from several threads, and a drawn timeline.

Contract: nothing depends on colour alone; without a terminal, with NO_COLOR or TERM=dumb there are
no escape sequences, and where the encoding lacks the drawing characters plain ones are used.
Partner: `demo.py`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import textwrap
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

__all__ = ["Row", "Screen", "Span"]

# Middle tones of the 256 colours: readable on black and on white.
PALETTE = {
    "blue": "38;5;33",
    "orange": "38;5;166",
    "green": "38;5;35",
    "pink": "38;5;163",
    "teal": "38;5;37",
    "red": "38;5;160",
    "grey": "38;5;244",
    "bold": "1",
}


@dataclass(slots=True)
class Span:
    """From when to when something was so; `end` is None while it lasts."""

    kind: str  # "wait", "hold" or "stale": still believing in a lease that is over
    start: float
    end: float | None = None


@dataclass(slots=True)
class Row:
    """One line of a timeline. Spans are added by the worker and read while drawing."""

    name: str
    colour: str
    spans: list[Span] = field(default_factory=list[Span])

    def at(self, moment: float) -> str | None:
        """What was the case at that moment."""
        for span in reversed(self.spans):
            if span.start <= moment and (span.end is None or moment < span.end):
                return span.kind
        return None


class Screen:
    """Where the demonstration prints. Safe to use from several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._mutex = threading.Lock()
        self._drawn = 0  # lines of a timeline that the cursor stands right below
        self.live = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.coloured = self.live and not os.environ.get("NO_COLOR")
        self.width = max(40, min(80, shutil.get_terminal_size((80, 24)).columns))
        try:
            "█·│└─".encode(out.encoding or "utf-8")  # io.StringIO has none
            self._glyphs = {"hold": "█", "wait": "·", "stale": "x", None: " "}
            self._frame = ("│", "└", "─")
        except (UnicodeEncodeError, LookupError):
            self._glyphs = {"hold": "#", "wait": ".", "stale": "x", None: " "}
            self._frame = ("|", "|", "-")

    def paint(self, colour: str, text: str) -> str:
        return f"\x1b[{PALETTE[colour]}m{text}\x1b[0m" if self.coloured else text

    def say(self, text: str = "") -> None:
        with self._mutex:
            self._out.write(text + "\n")
            self._out.flush()
            self._drawn = 0

    def paragraph(self, text: str) -> None:
        self.say(textwrap.fill(text, self.width - 1))

    def title(self, text: str) -> None:
        self.say()
        self.say(self.paint("bold", text))

    def event(self, seconds: float, who: str, colour: str, text: str) -> None:
        """One dated line; long ones go on under their beginning."""
        head = f"{seconds:6.2f} s  {who:<5} "
        first, *rest = textwrap.wrap(text, self.width - 1 - len(head))
        lines = [f"{seconds:6.2f} s  {self.paint(colour, f'{who:<5}')} {first}"]
        self.say("\n".join([*lines, *(" " * len(head) + line for line in rest)]))

    # -- timelines --------------------------------------------------------------------------------

    def timeline(self, rows: Sequence[Row], now: float, length: float) -> list[str]:
        """One line for each row, time to the right, and a scale. Each column shows its middle."""
        pad = max(len(row.name) for row in rows)
        columns = self.width - pad - 5
        bar, corner, dash = self._frame
        lines: list[str] = []
        for row in rows:
            cells = ""
            for column in range(columns):
                moment = (column + 0.5) * length / columns
                cells += self._glyphs[row.at(moment) if moment <= now else None]
            cells = cells.rstrip()
            # Waiting and stale time are not in the row's colour: they are not its own.
            runs = ["".join(run) for _, run in itertools.groupby(cells)]
            painted = "".join(self.paint(self._colour(run[0], row), run) for run in runs)
            lines.append(f"  {self.paint(row.colour, row.name.ljust(pad))} {bar}{painted}")
        right = f"{length:.1f} s"
        scale = dash * (columns - len(right) - 3)
        lines.append(f"  {' ' * pad} {corner}0 {scale} {right}")
        return lines

    def _colour(self, glyph: str, row: Row) -> str:
        return {"·": "grey", ".": "grey", "x": "red"}.get(glyph, row.colour)

    def legend(self, *kinds: str) -> str:
        words = {"hold": "holds the lock", "wait": "waits in line", "stale": "its lease is over"}
        return "  " + "   ".join(f"{self._glyphs[kind]} {words[kind]}" for kind in kinds)

    def redraw(self, lines: list[str]) -> None:
        """Draw in place of what was drawn last, if nothing was said since."""
        with self._mutex:
            up = f"\x1b[{self._drawn}A" if self._drawn and self.live else ""
            clear = "\x1b[K" if self.live else ""
            self._out.write(up + "".join(f"{line}{clear}\n" for line in lines))
            self._out.flush()
            self._drawn = len(lines)
