"""`holdfast lab`: its words. What it does is in `show.py`, imported when it is done."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from holdfast.cli.options import json_option
from holdfast.cli.outcome import FAILED, OK, has_password, say

__all__ = ["lab"]

HELP = """\
How locks on Redis go wrong, live: each level runs a naive lock into a fault and shows it break,
then holdfast's into the same fault. What happens is recorded, judged and drawn. Without LEVEL: all
of them, in order.

It starts a redis-server of its own and ends it. The exit status is 1 if a naive form did not break,
or holdfast's did not hold.
"""


def complete_levels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from holdfast.cli.lab.levels import LEVELS

    return [name for name in LEVELS if name.startswith(incomplete)]


@click.command(short_help="how locks on Redis go wrong, and how not: live", help=HELP)
@click.argument("level", required=False, shell_complete=complete_levels)
@click.option("--list", "listing", is_flag=True, help="The levels, and nothing else.")
@click.option(
    "--redis",
    metavar="URL",
    help="Use this running server (redis://host:6379/0) and not one of its own. Keys of its own "
    "names are written and deleted. Levels that kill a server never use it.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write a page with the timelines. It needs no other file.",
)
@json_option
def lab(
    level: str | None, listing: bool, redis: str | None, html: Path | None, as_json: bool
) -> int:
    from holdfast.cli.lab import show
    from holdfast.cli.lab.levels import LEVELS
    from holdfast.cli.tables import print_json

    if level is not None and level not in LEVELS:
        close = difflib.get_close_matches(level, LEVELS, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(LEVELS)}"
        raise click.UsageError(f"there is no level {level!r}. {hint}")
    if listing:
        if as_json:
            print_json({"levels": [{"name": o.name, "title": o.title} for o in LEVELS.values()]})
        else:
            show.list_levels()
        return OK
    if redis is not None and has_password(redis):
        say(
            "warning: the URL on the command line has a password, which everybody on this host can "
            "see (ps)",
            redis,
        )
    if html is not None and not html.parent.is_dir():
        raise click.UsageError(f"--html: there is no directory {str(html.parent)!r}")
    report = show.play([level] if level else list(LEVELS), redis, quiet=as_json)
    if html is not None:
        from holdfast.cli.lab.page import page

        html.write_text(page(report), encoding="utf-8")
    if as_json:
        print_json(show.as_json(report))
    return OK if report.ok else FAILED
