"""A timeline as SVG: the rows that `screen.py` draws in a terminal, for a page.

Contract: one element without ids, so that many stand on a page; colours come from the page's style
(light and dark), and every span says in words what it is: nothing depends on colour alone.
Partners: `drawing.py`, `page.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from holdfast.cli.screen import SEVERITY, WORDS, Row

__all__ = ["STYLE", "timeline_svg"]

WIDTH, LEFT, RIGHT, ROW, BAR = 760, 96, 12, 34, 22
SLIVER = 4.0
"""How wide what is over at once is drawn, so that it is seen."""
LETTER = 7.2
"""About how wide a letter is: whether a word fits into its span."""

STYLE = """
svg { width: 100%; height: auto; max-width: 60rem; }
svg text { font: 13px system-ui, sans-serif; fill: var(--text); }
svg .axis { stroke: var(--faint); fill: none; }
svg .small { font-size: 11.5px; fill: var(--quiet); }
svg .word { font-size: 11.5px; }
svg .in { fill: #fff; font-weight: 600; }
svg .hold.ada { fill: #0a69da; } svg .hold.bob { fill: #bc4c00; } svg .hold.cleo { fill: #1a7f37; }
svg .wait { fill: none; stroke: var(--quiet); stroke-width: 2; stroke-dasharray: 2 6;
  stroke-linecap: round; }
svg .paused { fill: var(--faint); stroke: var(--quiet); stroke-dasharray: 4 3; }
svg .stale { fill: none; stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .dead { stroke: var(--bad); stroke-width: 3; }
svg .clash { fill: #cf222e; }
svg .fault { stroke: var(--quiet); stroke-dasharray: 2 3; }
"""


def timeline_svg(
    rows: Sequence[Row], length: float, marks: Sequence[tuple[float, str]], title: str
) -> str:
    """`marks` are moments with a short label (a number) at the top."""
    length = max(length, 0.1)
    height = 18 + ROW * len(rows) + 26
    bottom = height - 26

    def x(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(moment / length, 0.0), 1.0)

    out = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(title)}</title>",
    ]
    for place, label in _together([(x(moment), label) for moment, label in marks]):
        out.append(f'<path class="fault" d="M{place:.1f} 16 V{bottom}"/>')
        where = f'x="{place:.1f}" y="12" text-anchor="middle"'
        out.append(f'<text class="small" {where}>{escape(label)}</text>')
    for number, row in enumerate(rows):
        top = 18 + ROW * number
        middle = top + ROW / 2
        out.append(f'<text x="4" y="{middle + 4:.1f}">{escape(row.name)}</text>')
        for span in sorted(row.spans, key=lambda span: SEVERITY.index(span.kind)):
            end = length if span.end is None else span.end
            out.append(_span(span.kind, row.name, x(span.start), x(end), middle))
    out.append(f'<path class="axis" d="M{LEFT} {bottom} H{WIDTH - RIGHT}"/>')
    out.append(f'<text class="small" x="{LEFT}" y="{height - 8}">0</text>')
    right = f'x="{WIDTH - RIGHT}" y="{height - 8}" text-anchor="end"'
    out.append(f'<text class="small" {right}>{length:.1f} s</text></svg>')
    return "\n".join(out)


def _together(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Marks whose labels would touch share one."""
    found: list[tuple[float, str]] = []
    for place, label in marks:
        if found and place - found[-1][0] < LETTER * (len(found[-1][1]) + 1):
            label = f"{found[-1][1]}, {label}"
            place = found.pop()[0]
        found.append((place, label))
    return found


def _span(kind: str, who: str, left: float, right: float, middle: float) -> str:
    word = WORDS[kind]
    said = f"<title>{escape(f'{who}: {word}')}</title>"
    if kind == "wait":
        line = f"M{left + 2:.1f} {middle} H{max(right, left + 2.1):.1f}"
        return f'<path class="wait" d="{line}">{said}</path>'
    if kind == "dead":
        a, b, c, d = left - 6, left + 6, middle - 8, middle + 8
        cross = f"M{a:.1f} {c} L{b:.1f} {d} M{b:.1f} {c} L{a:.1f} {d}"
        return f'<path class="dead" d="{cross}">{said}</path>'
    width = max(right - left, SLIVER)
    left = min(left, WIDTH - RIGHT - width)
    box = f'x="{left:.1f}" y="{middle - BAR / 2}" width="{width:.1f}" height="{BAR}" rx="4"'
    drawn = f'<rect class="{kind} {escape(who)}" {box}>{said}</rect>'
    short = {"hold": "holds", "paused": "stopped", "stale": "over", "clash": "two at once"}[kind]
    if width > LETTER * len(short) + 8:
        tone = "in" if kind in ("hold", "clash") else "word"
        drawn += f'<text class="{tone}" x="{left + 6:.1f}" y="{middle + 4}">{short}</text>'
    return drawn
