"""`holdfast watch`: who holds what, live; or every change, for programs. Partner: `tables.py`.

Contract: a change is another holder, another waiter or another order, or that the store went away
or came back; neither the passing of time nor a renewal is one. Ends by Ctrl-C.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

import holdfast
from holdfast.cli.options import NAME, Seconds, complete_names, json_option, look_into, url_option
from holdfast.cli.outcome import INTERRUPTED
from holdfast.cli.tables import duration, lock_json, overview, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from holdfast.cli.screen import Screen

__all__ = ["watch"]


@click.command(
    short_help="who holds what, live",
    help="Show the locks whose names begin with PREFIX until Ctrl-C. With --json, or without a\n"
    "terminal, every change is printed when it is seen.",
)
@click.argument("prefix", type=NAME, default="", shell_complete=complete_names)
@click.option(
    "--interval",
    type=Seconds(0.05, 86400),
    default=1.0,
    metavar="SECONDS",
    help="From one look to the next: 1 by default, at least 0.05.",
)
@json_option
@url_option
@click.pass_context
def watch(
    ctx: click.Context, /, prefix: str, interval: float, as_json: bool, url: str | None
) -> int:
    try:
        with look_into(ctx, url) as locks:
            locks.inspect(prefix)  # a store that is away from the start is an error, not a picture
            if as_json:
                follow(locks, prefix, interval)
            from holdfast.cli.screen import open_screen

            screen = open_screen()
            (live if screen.moves else scroll)(locks, prefix, interval, screen)
    except KeyboardInterrupt:  # how one leaves it
        return INTERRUPTED
    return 0


def summary(infos: Sequence[holdfast.LockInfo]) -> str:
    waiting = sum(len(info.waiters) for info in infos)
    return f"{len(infos)} lock{'' if len(infos) == 1 else 's'}, {waiting} waiting"


class Look:
    """What one look saw: the locks, or why there is nothing to see."""

    def __init__(self, locks: holdfast.Locks, prefix: str) -> None:
        self.at = time.time()
        self.infos: list[holdfast.LockInfo] = []
        self.trouble = ""
        try:
            self.infos = locks.inspect(prefix)
        except holdfast.Unavailable as error:
            self.trouble = str(error)

    @property
    def essence(self) -> object:
        """What must differ for a change: not the passing of time, nor a renewal."""
        return bool(self.trouble), [
            (i.name, [c.id for c in i.holders], [c.id for c in i.waiters]) for i in self.infos
        ]


def follow(locks: holdfast.Locks, prefix: str, interval: float) -> None:
    """A JSON document for each change, for ever."""
    before: object = None
    while True:
        look = Look(locks, prefix)
        if look.essence != before:
            document: dict[str, Any] = {"time": round(look.at, 3)}
            if look.trouble:
                document["error"] = look.trouble
            else:
                document["locks"] = [lock_json(info) for info in look.infos]
            print_json(document)
            before = look.essence
        time.sleep(interval)


def scroll(locks: holdfast.Locks, prefix: str, interval: float, screen: Screen) -> None:
    """A table for each change, one below the other, for ever."""
    before: object = None
    while True:
        look = Look(locks, prefix)
        if look.essence != before:
            moment = time.strftime("%H:%M:%S", time.localtime(look.at))
            screen.paint(f"{moment}  {look.trouble or summary(look.infos)}", "bold")
            if look.infos:
                screen.print(overview(look.infos, screen))
            screen.print()
            before = look.essence
        time.sleep(interval)


def live(locks: holdfast.Locks, prefix: str, interval: float, screen: Screen) -> None:
    """One table that changes in place, for ever."""
    from rich.live import Live

    seen = Look(locks, prefix)

    def draw(look: Look) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        from holdfast.cli.screen import PALETTE, clean

        nonlocal seen
        head = Text()
        if look.trouble:
            age = duration(look.at - seen.at)
            head.append(f"THE STORE DOES NOT ANSWER; below is what was so {age} ago. ", "bold")
            head.append(clean(look.trouble), PALETTE["red"])
        else:
            seen = look
            head.append(summary(seen.infos), "bold")
            head.append(f"   every {interval:g} s, Ctrl-C ends", PALETTE["grey"])
        room = max(1, screen.height - 5)
        parts: list[RenderableType] = [head]
        count = min(len(seen.infos), room)
        while count > 1 and len(screen.render_lines(overview(seen.infos[:count], screen))) > room:
            count -= 1  # where it is narrow, a lock takes several lines
        if seen.infos:
            parts.append(overview(seen.infos[:count], screen))
        if len(seen.infos) > count:
            parts.append(Text(f"and {len(seen.infos) - count} more", PALETTE["grey"]))
        # The terminal echoes Ctrl-C where the cursor stands: not at the end of a full line, where
        # it would begin a new one and put the last drawing out of place.
        parts.append(Text())
        return Group(*parts)

    with Live(draw(seen), console=screen, auto_refresh=False) as picture:
        while True:
            time.sleep(interval)
            picture.update(draw(Look(locks, prefix)), refresh=True)
