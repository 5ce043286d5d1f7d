"""Ratios as bars on a logarithmic axis: a small SVG, written by hand, for light and dark pages.

Contract: a function of a scenario's recorded cases. Each bar begins at 1 (the same as the other);
the thin line is the range over the pairs. Colour says which side is better for the bar's subject,
and the number says it without colour. It has a ground of its own, so it can be read alone, on
light and on dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["drawn", "number"]

WIDTH, LEFT, RIGHT, TOP, ROW, HEAD = 860, 400, 70, 54, 18, 24

STYLE = """
:root { color-scheme: light dark; background: #ffffff; }
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.head { font-weight: 600; } .small { font-size: 11px; } .soft { fill: #6e7781; }
.grid { stroke: #d0d7de; } .one { stroke: #57606a; } .range { stroke: #57606a; }
.better { fill: #2f81c1; } .worse { fill: #d1762c; }
@media (prefers-color-scheme: dark) {
  :root { background: #0d1117; }
  text { fill: #e6edf3; } .soft { fill: #9198a1; }
  .grid { stroke: #30363d; } .one { stroke: #9198a1; } .range { stroke: #c9d1d9; }
  .better { fill: #58a6e0; } .worse { fill: #e8965a; }
}
"""


def number(value: float) -> str:
    """Three digits that count, and never as a power of ten."""
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    if abs(value) < 1:
        return f"{float(text):.15f}".rstrip("0")
    return f"{float(text):,.0f}".replace(",", " ")


def drawn(scenario: str, cases: Sequence[dict[str, Any]]) -> str:
    ratios = [ratio for case in cases for ratio in case["ratios"] if ratio["median"] > 0]
    scale = _Scale([r[name] for r in ratios for name in ("median", "lowest", "highest")])
    rows: list[str] = []
    y = TOP
    for case in cases:
        bars = [ratio for ratio in case["ratios"] if ratio["median"] > 0]
        if not bars:
            continue
        rows.append(_text(8, y + 16, f"{case['case']}, {case['placement']}", "head"))
        y += HEAD
        for ratio in bars:
            rows += _bar(ratio, y, scale)
            y += ROW
        y += 6
    height = y + 10
    figures = dict.fromkeys(f"{r['figure']} ({r['better']} is better)" for r in ratios)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(scenario)}: ratios</title>",
            f"<style>{STYLE}</style>",
            _text(8, 18, scenario, "head"),
            _text(8, 36, "ratio of " + ", ".join(figures), "small soft"),
            *_axis(scale, height),
            *rows,
            "</svg>\n",
        ]
    )


class _Scale:
    """Powers of ten around everything there is to show."""

    def __init__(self, values: Sequence[float]) -> None:
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        self.low = min(math.floor(min(logs) * 2) / 2, -0.5)
        self.high = max(math.ceil(max(logs) * 2) / 2, 0.5)

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low) if value > 0 else 0.0
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> Iterator[float]:
        whole = [10.0**power for power in range(math.floor(self.low), math.ceil(self.high) + 1)]
        fine = (1, 2, 5) if self.high - self.low <= 2 else (1,)
        for tick in whole:
            for times in fine:
                if self.low - 1e-9 <= math.log10(tick * times) <= self.high + 1e-9:
                    yield tick * times


def _axis(scale: _Scale, height: int) -> Iterator[str]:
    for tick in scale.ticks():
        x = scale.x(tick)
        kind = "one" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 8}"/>'
        yield _text(x, TOP - 4, number(tick), "small soft", "middle")


def _bar(ratio: dict[str, Any], y: int, scale: _Scale) -> Iterator[str]:
    start, end = scale.x(1), scale.x(ratio["median"])
    better = (ratio["median"] > 1) == (ratio["better"] == "higher")
    label = f"{ratio['subject']} / {ratio['against']}"
    yield _text(LEFT - 8, y + 12, label, "small", "end")
    yield (
        f'<rect class="{"better" if better else "worse"}" x="{min(start, end):.1f}"'
        f' y="{y + 3}" width="{max(1.0, abs(end - start)):.1f}" height="{ROW - 7}" rx="1.5"/>'
    )
    right = max(start, end)
    if ratio["pairs"] > 1:
        low, high = scale.x(ratio["lowest"]), scale.x(ratio["highest"])
        middle = y + 3 + (ROW - 7) / 2
        yield f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
        right = max(right, high)
    yield _text(right + 5, y + 12, number(ratio["median"]), "small")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
