"""`holdfast sentinel`: the crash detector as a service, and what the running ones have done.

Contract: a line for everything that was seen or done, as text or JSON; no owner id is in it. TERM
ends it with 0 and gives the lead to the next one at once. Partner: `holdfast.sentinel`.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import click

from holdfast.cli.options import defaulted, given_url, url_option
from holdfast.cli.outcome import FAILED, INTERRUPTED, OK
from holdfast.sentinel import Event, Sentinel, status

__all__ = ["sentinel"]


class Terminated(KeyboardInterrupt):
    """TERM, which ends a service as Ctrl-C ends a command."""


@click.command(
    short_help="free what dead clients hold, at once",
    help="Watch the clients of the store that were made with crash_grace, and free what they hold\n"
    "when they die. Runs until Ctrl-C or TERM. Several may run: one leads, the others stand\n"
    "by. With --status it does not run, but shows the running ones and what they did.",
)
@click.argument("store", metavar="[URL]", default=None, required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON: a line for each event, or the status.")
@click.option("--status", "show", is_flag=True, help="Show the running ones; 1 if there are none.")
@url_option
@click.pass_context
def sentinel(
    ctx: click.Context, /, store: str | None, as_json: bool, show: bool, url: str | None
) -> int:
    if store is not None and url is not None:
        raise click.UsageError("the store is named twice")
    where = given_url(ctx, store or url)
    if show:
        with defaulted(where):
            return show_status(status(where), as_json)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with defaulted(where):
            Sentinel(where, print_json_line if as_json else print_line).run()
    except Terminated:
        return OK
    except KeyboardInterrupt:  # how one leaves it
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return OK


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def print_json_line(event: Event) -> None:
    from holdfast.cli.tables import print_json

    print_json(event.document())


def print_line(event: Event) -> None:
    from holdfast.cli.screen import clean

    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    words = [moment, event.event]
    if event.name:
        words.append(f"{clean(event.name)} of {clean(event.holder)}")
    if event.absent is not None:
        words.append(f"after {event.absent:.2f} s")
    why = f": {clean(event.why)}" if event.why else ""
    click.echo(" ".join(words) + why)


def show_status(found: dict[str, Any], as_json: bool) -> int:
    running = bool(found["leader"] or found["standby"])
    if as_json:
        from holdfast.cli.tables import print_json

        print_json(found)
        return OK if running else FAILED
    if not running:
        click.echo("no sentinel runs")
        return FAILED
    from holdfast.cli.screen import clean

    for role in ("leader", "standby"):
        for info in found[role]:
            click.echo(f"{role:8} {clean(info.get('host', '?'))}:{clean(info.get('pid', '?'))}")
    if found["counters"] is not None:
        click.echo(f"leads for {found['leading']:g} s")
        for counter, count in found["counters"].items():
            click.echo(f"{counter:9} {count}")
    return OK
