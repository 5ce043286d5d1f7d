"""The report of `holdfast lab` as one page that needs no other file, in light and dark.

Contract: what it shows is the report, nothing else; no script, no font, no address is loaded.
Partners: `show.py`, `svg.py`.
"""

from __future__ import annotations

import inspect
from html import escape

import holdfast
from holdfast.cli.lab.level import Level
from holdfast.cli.lab.show import Played, Report
from holdfast.cli.lab.svg import STYLE, timeline_svg
from holdfast.cli.lab.words import words

__all__ = ["page"]

HEAD = (
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>holdfast lab</title>
<style>
:root { --text: #24292f; --quiet: #57606a; --faint: #d8dee4; --ground: #ffffff; --box: #f6f8fa;
  --bad: #cf222e; --good: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --quiet: #9198a1; --faint: #3d444d; --ground: #0d1117; --box: #161b22;
    --bad: #f85149; --good: #3fb950; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; } h3 { margin: 1.6rem 0 .4rem; font-size: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem; }
pre { background: var(--box); padding: .8rem; overflow-x: auto; border-radius: 6px; }
.broken { color: var(--bad); } .held { color: var(--good); } .unclear { color: var(--bad); }
.unexpected { border: 2px solid var(--bad); padding: .4rem .8rem; border-radius: 6px; }
table { border-collapse: collapse; font-size: .85rem; color: var(--quiet); }
td { padding: 0 .9rem 0 0; vertical-align: top; } td.at { text-align: right; white-space: nowrap; }
.marks { margin: 0; font-size: .85rem; color: var(--quiet); }
summary { cursor: pointer; color: var(--quiet); font-size: .85rem; }
nav a { color: inherit; margin-right: .8rem; }
"""
    + STYLE
    + "</style>\n</head>\n<body>\n"
)

FAULTS = ("killed", "stopped", "woken", "swallowed", "delayed", "arrived", "cut")
SIGNS = {"broken": "✗ breaks", "held": "✓ holds", "unclear": "? unclear"}


def page(report: Report) -> str:
    out = [HEAD, "<h1>How locks go wrong, and how not</h1>"]
    everything = "every level went" if report.ok else "NOT every level went"
    out.append(
        f"<p>Recorded by <code>holdfast lab</code> (holdfast {escape(holdfast.__version__)}, "
        f"Redis {escape(report.version)}): real processes, a real server; {everything} as it "
        "must.</p>"
    )
    links = (f'<a href="#{level.name}">{level.name}</a>' for level, _ in report.levels)
    out.append(f"<nav>{' '.join(links)}</nav>")
    for level, played in report.levels:
        out += _level(level, played)
    return "\n".join([*out, "</body>\n</html>\n"])


def _level(level: Level, played: list[Played]) -> list[str]:
    out = [
        f'<section id="{level.name}">',
        f"<h2>{escape(level.title)}</h2>",
        f"<p>{escape(level.fault)}</p>",
    ]
    for one in played:
        out += _form(level, one)
    return [*out, f"<p><strong>Why.</strong> {escape(level.why)}</p>", "</section>"]


def _form(level: Level, one: Played) -> list[str]:
    outcome = one.finding.outcome
    length = max(one.history.end - one.began, 0.1) * 1.02
    faults = [event for event in one.history.events if event.what in FAULTS]
    marks = [(event.at - one.began, str(n)) for n, event in enumerate(faults, 1)]
    captions = [f"{n} {event.who}: {words(event)}" for n, event in enumerate(faults, 1)]
    title = f"{level.title}, {one.form.name}: {one.finding.text}"
    expected = "" if one.ok else f" (expected: {one.form.expected})"
    out = [
        f"<h3>{escape(one.form.name)}: <code>{escape(one.form.text)}</code></h3>",
        timeline_svg(one.rows, length, marks, title),
        f'<p class="marks">{escape(" · ".join(captions))}</p>' if captions else "",
        f'<p class="{"" if one.ok else "unexpected"}"><strong class="{outcome}">{SIGNS[outcome]}'
        f"{expected}.</strong> {escape(one.finding.text)}.</p>",
        "<details><summary>What happened, in order</summary><table>",
    ]
    numbers = {event: str(n) for n, event in enumerate(faults, 1)}
    out += [
        f'<tr><td>{numbers.get(event, "")}</td><td class="at">{event.at - one.began:.3f} s</td>'
        f"<td>{escape(event.who)}</td><td>{escape(text)}</td></tr>"
        for event in one.history.events
        if (text := words(event))
    ]
    out.append("</table></details>")
    if one.form.source is not None:
        source = inspect.getsource(one.form.source)
        out.append("<details><summary>How it is written</summary>")
        out.append(f"<pre>{escape(source)}</pre></details>")
    return out
