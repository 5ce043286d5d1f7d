"""The terminal: the one place that knows of colours, widths, and what a terminal must not be told.

Contract: nothing depends on colour alone. Without a terminal, with NO_COLOR or TERM=dumb there are
no colours (and no cursor movements, except that NO_COLOR leaves a live table live); where the
encoding lacks the drawing characters plain ones are used. Text that comes from a store is shown by
`clean`: a lock's name cannot move the cursor, hide, or reverse a line.
Partners: `tables.py`, `stage.py`.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = [
    "PALETTE",
    "Column",
    "Row",
    "Screen",
    "Span",
    "clean",
    "cut",
    "legend",
    "open_screen",
    "shown",
    "table",
    "timeline",
]

# Middle tones of the 256 colours: readable on black and on white.
PALETTE = {
    "blue": "color(32)",
    "orange": "color(166)",
    "green": "color(28)",
    "pink": "color(163)",
    "teal": "color(30)",
    "red": "color(160)",
    "grey": "color(244)",
    "bold": "bold",
    "": "none",
}


class Screen(Console):
    """Where everything is printed."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # `main` knows what to do; rich would exit with 1

    def paint(self, text: str, colour: str = "") -> None:
        """A paragraph of our own text."""
        self.hang(Text(), text, colour)

    def hang(self, head: Text, body: str, colour: str = "") -> None:
        """A paragraph whose lines stand behind its head."""
        room = min(self.width, 100) - head.cell_len
        for number, line in enumerate(Text(body, PALETTE[colour]).wrap(self, room)):
            line.rstrip()
            self.print(Text.assemble(head if number == 0 else " " * head.cell_len, line))

    @property
    def moves(self) -> bool:
        """Whether something can be drawn over what was drawn before."""
        return self.is_terminal and not self.is_dumb_terminal


def open_screen(out: TextIO | None = None) -> Screen:
    out = out or sys.stdout
    terminal = out is not None and out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Screen(
        file=out,
        force_terminal=terminal,
        color_system="256" if terminal and not os.environ.get("NO_COLOR") else None,
        width=max(40, shutil.get_terminal_size((80, 24)).columns),
        markup=False,
        highlight=False,
        emoji=False,
    )


# -- text from elsewhere ---------------------------------------------------------------------------


def clean(text: str) -> str:
    """What may be shown of it: control, formatting and unpaired characters become escapes."""
    return "".join(c if c == " " or _harmless(c) else _escape(c) for c in text)


def _harmless(character: str) -> bool:
    return unicodedata.category(character)[0] not in "CZ"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """At most so many columns wide; what is too much is taken from the middle, because names
    differ at their ends. The number of a process (`host:4711 (label)`) stays whole."""
    if cell_len(text) <= width:
        return text
    if process := re.fullmatch(r"(\S+)(:\d+)((?: .*)?)", text):
        host, number, label = process.groups()
        room = width - len(number)
        if room >= 2:
            least = min(cell_len(host), max(room // 2, room - cell_len(label)))
            return cut(host, least, ellipsis) + number + cut(label, room - least, ellipsis)
    room = max(0, width - len(ellipsis))
    head = _fitting(text, (room + 1) // 2)
    tail = _fitting(text[::-1], room // 2)[::-1]
    return (head + ellipsis + tail)[:width] if width < len(ellipsis) else head + ellipsis + tail


def _fitting(text: str, width: int) -> str:
    """The longest beginning that is so wide; some characters take two columns, some none."""
    widths = itertools.accumulate(map(cell_len, text))
    return text[: sum(1 for _ in itertools.takewhile(lambda used: used <= width, widths))]


# -- tables ----------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Column:
    title: str
    right: bool = False
    least: int = 0  # > 0: may be cut to this width when there is not enough room


GAP = 2


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], screen: Console
) -> RenderableType:
    """A table without lines and without empty columns, as wide as the screen at most: what may be
    cut is cut, the widest column first. If that is not enough, its rows are written as text."""
    ellipsis = "..." if screen.options.ascii_only else "…"
    shown = [i for i, _ in enumerate(columns) if any(row[i] for row in rows)]
    texts = {i: (columns[i].title, *(row[i] for row in rows)) for i in shown}
    widths = {i: max(map(cell_len, column)) for i, column in texts.items()}
    excess = sum(widths.values()) + GAP * (len(shown) - 1) - screen.width
    while excess > 0 and (able := [i for i in shown if 0 < columns[i].least < widths[i]]):
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1
    if excess > 0:
        return Group(*(_stacked([columns[i] for i in shown], [row[i] for i in shown], screen)
                       for row in rows))  # fmt: skip
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for i in shown:
        justify: Literal["left", "right"] = "right" if columns[i].right else "left"
        drawn.add_column(columns[i].title, justify=justify, width=widths[i], no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(cut(row[i], widths[i], ellipsis)) for i in shown))
    return drawn


def _stacked(columns: Sequence[Column], row: Sequence[str], screen: Console) -> Text:
    """A row of a table that finds no room: its first cell, and below it what the others say."""
    entries = [
        f"{column.title.lower()} {cell}"
        for column, cell in zip(columns[1:], row[1:], strict=True)
        if cell
    ]
    lines = Text(row[0], "bold").wrap(screen, screen.width)
    room = screen.width - GAP
    for flowing in _flow(entries, ", ", room):
        for line in Text(flowing).wrap(screen, room):
            line.rstrip()
            lines.append(Text(" " * GAP).append_text(line))
    return Text("\n").join(lines)


def _flow(entries: Sequence[str], between: str, width: int) -> list[str]:
    """Lines that end between two entries; one that is wider by itself has a line to itself."""
    lines: list[str] = []
    for entry in entries:
        if lines and cell_len(lines[-1] + between + entry + between.rstrip()) <= width:
            lines[-1] += between + entry
        else:
            if lines:
                lines[-1] += between.rstrip()
            lines.append(entry)
    return lines


# -- timelines -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Span:
    """From when to when something was so; `end` is None while it lasts."""

    kind: str  # a key of GLYPHS
    start: float
    end: float | None = None


@dataclass(slots=True)
class Row:
    """One line of a timeline: what one process did."""

    name: str
    colour: str
    spans: list[Span] = field(default_factory=list[Span])

    def begin(self, kind: str, moment: float) -> None:
        self.end(moment)
        self.spans.append(Span(kind, moment))

    def end(self, moment: float) -> None:
        if self.spans and self.spans[-1].end is None:
            self.spans[-1].end = moment

    def at(self, moment: float) -> str | None:
        """What was the case at that moment."""
        for span in reversed(self.spans):
            if span.start <= moment and (span.end is None or moment < span.end):
                return span.kind
        return None


GLYPHS = {
    "hold": "█#",
    "wait": "·.",
    "stale": "xx",
    "paused": "▒%",
    "dead": "XX",
    "clash": "!!",
}
"""Drawn, and drawn where there is only ASCII."""
COLOURS = {"wait": "grey", "stale": "red", "paused": "grey", "dead": "red", "clash": "red"}
"""Not in the row's own colour."""
BAD = ("stale", "dead", "clash")
SEVERITY = ("wait", "hold", "paused", *BAD)
WORDS = {
    "hold": "holds the lock",
    "wait": "waits for it",
    "paused": "stopped (SIGSTOP)",
    "stale": "its lease is over",
    "dead": "killed (SIGKILL)",
    "clash": "two at once",
}


def timeline(rows: Sequence[Row], now: float, length: float, screen: Console) -> Text:
    """One line for each row, time to the right, and a scale."""
    plain = screen.options.ascii_only
    bar, corner, dash = ("|", "|", "-") if plain else ("│", "└", "─")
    pad, columns = _room(rows, screen)
    drawn = Text(no_wrap=True)
    for row, kinds in zip(rows, _grid(rows, now, length / columns, columns), strict=True):
        drawn.append(f"  {row.name:<{pad}} ", PALETTE[row.colour])
        drawn.append(bar)
        for kind, run in itertools.groupby(kinds):
            glyph = " " if kind is None else GLYPHS[kind][plain]
            drawn.append(glyph * len(list(run)), PALETTE[COLOURS.get(kind or "", row.colour)])
        drawn.append("\n")
    right = f"{length:.1f} s"
    scale = dash * (columns - len(right) - 3)
    drawn.append(f"  {' ' * pad} {corner}0 {scale} {right}")
    return drawn


def shown(rows: Sequence[Row], now: float, length: float, screen: Console) -> list[str]:
    """What can be seen in that timeline, in the order of the legend."""
    _, columns = _room(rows, screen)
    there = {kind for kinds in _grid(rows, now, length / columns, columns) for kind in kinds}
    return [kind for kind in GLYPHS if kind in there]


def _room(rows: Sequence[Row], screen: Console) -> tuple[int, int]:
    """The width of the names, and of the rest: a Ctrl-C that is echoed behind it finds room."""
    pad = max(len(row.name) for row in rows)
    return pad, min(screen.width, 100) - pad - 8


def _grid(rows: Sequence[Row], now: float, width: float, columns: int) -> list[list[str | None]]:
    """What each column of each row shows: the worst that touches it; if nothing bad does, its
    middle. What is shorter than a column is drawn into one, unless that shows something worse."""
    middles = [(column + 0.5) * width for column in range(columns)]
    grid = [[row.at(middle) if middle <= now else None for middle in middles] for row in rows]
    drawn = ((span, kinds) for row, kinds in zip(rows, grid, strict=True) for span in row.spans)
    for span, kinds in sorted(drawn, key=lambda one: SEVERITY.index(one[0].kind)):
        end = now if span.end is None else min(span.end, now)
        first = int(max(0.0, span.start) / width)
        touched = range(first, min(columns, max(first + 1, math.ceil(end / width))))
        if end < span.start or span.end == span.start:
            continue
        if span.kind in BAD:
            for column in touched:
                kinds[column] = span.kind
        elif not any(kinds[column] == span.kind for column in touched):
            # Who gives up and who follows, within a column, shall not seem to hold at once.
            others = grid if span.kind == "hold" else ()
            for column in touched:
                taken = any(other[column] == "hold" for other in others)
                if not taken and _worse(span.kind, kinds[column]):
                    kinds[column] = span.kind
                    break
    return grid


def _worse(kind: str, other: str | None) -> bool:
    return other is None or SEVERITY.index(kind) > SEVERITY.index(other)


def legend(kinds: Sequence[str], screen: Console) -> Text:
    """What the signs mean; a line ends between two of them."""
    plain = screen.options.ascii_only
    entries = [f"{GLYPHS[kind][plain]} {WORDS[kind]}" for kind in kinds]
    return Text("\n".join(f"  {line}" for line in _flow(entries, "   ", screen.width - 2)))
