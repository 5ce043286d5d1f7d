"""`ls`, `show`, `release`: who holds what, for people and for programs.

Contract: JSON has the names as they are, times as seconds, and keeps its keys (documented in
docs/reference/cli.md). Tables cut what is too long and show nothing that a terminal would obey.
An owner id is never shown: `id` is a short hash of it, the same in every listing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import holdfast
from holdfast.cli.options import NAME, complete_names, json_option, look_into, url_option
from holdfast.cli.outcome import FAILED, Ended, brief

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.screen import Screen

__all__ = ["duration", "lock_json", "ls", "overview", "print_json", "release", "show"]

# -- as JSON ---------------------------------------------------------------------------------------


def claim_json(claim: holdfast.ClaimInfo) -> dict[str, Any]:
    return {
        "id": claim.id,
        "mode": claim.mode.value,
        "since": round(claim.since, 3),
        "remaining": None if claim.remaining is None else round(claim.remaining, 3),
        "permits": claim.permits,
        "fence": claim.fence,
        "info": dict(claim.info),
    }


def lock_json(info: holdfast.LockInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "fence": info.fence,
        "holders": [claim_json(claim) for claim in info.holders],
        "waiters": [claim_json(claim) for claim in info.waiters],
    }


def print_json(document: dict[str, Any]) -> None:
    """One document, one line. ASCII only: whatever a name holds, it is an escape here."""
    click.echo(json.dumps(document))


# -- as words --------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds / 86400:.0f} d"


def where(claim: holdfast.ClaimInfo) -> str:
    return f"{claim.info.get('host', '?')}:{claim.info.get('pid', '?')}"


def who(claim: holdfast.ClaimInfo) -> str:
    """Host and process, and what it calls itself."""
    label = claim.info.get("label") or claim.info.get("command")
    return f"{where(claim)} ({label})" if label else where(claim)


def how(claim: holdfast.ClaimInfo) -> str:
    if claim.mode is holdfast.Mode.PERMITS:
        return f"{claim.permits} permit{'s' if claim.permits > 1 else ''}"
    return str(claim.mode.value)


def overview(infos: Sequence[holdfast.LockInfo], screen: Screen) -> RenderableType:
    from holdfast.cli.screen import Column, clean, table

    columns = (
        Column("NAME", least=12),
        Column("HELD BY", least=16),
        Column("AS"),
        Column("SINCE", right=True),
        Column("LEFT", right=True),
        Column("WAITING", right=True),
    )
    rows: list[tuple[str, ...]] = []
    for info in infos:
        waiting = str(len(info.waiters) or "")
        if not info.holders:
            rows.append((clean(info.name), "nobody", "", "", "", waiting))
            continue
        first = info.holders[0]
        more = f" +{len(info.holders) - 1}" if len(info.holders) > 1 else ""
        rows.append(
            (
                clean(info.name),
                clean(who(first)) + more,
                how(first),
                duration(first.since),
                duration(first.remaining),
                waiting,
            )
        )
    return table(columns, rows, screen)


def details(info: holdfast.LockInfo, screen: Screen) -> RenderableType:
    from holdfast.cli.screen import Column, clean, table

    columns = (
        Column(""),
        Column("WHO", least=16),
        Column("AS"),
        Column("SINCE", right=True),
        Column("LEFT", right=True),
        Column("TOKEN", right=True),
        Column("ABOUT", least=12),
    )
    rows: list[tuple[str, ...]] = []
    places = [("holds", claim) for claim in info.holders]
    places += [(f"waits, {place}.", claim) for place, claim in enumerate(info.waiters, 1)]
    for place, claim in places:
        about = [f"{key}={text}" for key, text in claim.info.items() if key not in ("host", "pid")]
        rows.append(
            (
                place,
                clean(where(claim)),
                how(claim),
                duration(claim.since),
                duration(claim.remaining),
                "" if claim.fence is None else str(claim.fence),
                clean(" ".join(about)),
            )
        )
    return table(columns, rows, screen)


# -- the commands ----------------------------------------------------------------------------------


@click.command(
    short_help="who holds what, and who waits",
    help="List the locks that somebody holds or waits for, and whose names begin with PREFIX.",
)
@click.argument("prefix", type=NAME, default="", shell_complete=complete_names)
@json_option
@url_option
@click.pass_context
def ls(ctx: click.Context, /, prefix: str, as_json: bool, url: str | None) -> int:
    with look_into(ctx, url) as locks:
        infos = locks.inspect(prefix)
    if as_json:
        print_json({"locks": [lock_json(info) for info in infos]})
        return 0
    from holdfast.cli.screen import clean, open_screen

    screen = open_screen()
    if infos:
        screen.print(overview(infos, screen))
    else:
        begins = f" that begins with {brief(clean(prefix))!r}" if prefix else ""
        screen.paint(f"Nobody holds a lock{begins}.")
    return 0


@click.command(
    short_help="everything about one lock",
    help="Show who holds the lock NAME and who waits for it, in order, with tokens and metadata.",
)
@click.argument("name", type=NAME, shell_complete=complete_names)
@json_option
@url_option
@click.pass_context
def show(ctx: click.Context, /, name: str, as_json: bool, url: str | None) -> int:
    with look_into(ctx, url) as locks:
        info = find(locks, name)
        if not info.holders and not info.waiters:
            # What is no lock at all is not listed; who asks for it alone is told.
            locks.lock(name).locked()
    if as_json:
        print_json(lock_json(info))
        return 0
    from holdfast.cli.screen import clean, open_screen

    screen = open_screen()
    screen.paint(clean(name), "bold")
    token = "" if info.fence is None else f"; last token {info.fence}"
    state = f"held by {len(info.holders)}" if info.holders else "free"
    screen.paint(f"{state}, {len(info.waiters)} waiting{token}")
    if info.holders or info.waiters:
        screen.print()
        screen.print(details(info, screen))
    return 0


def find(locks: holdfast.Locks, name: str) -> holdfast.LockInfo:
    """One name, not all that begin with it; a name nobody uses is a free lock."""
    name = locks.lock(name).name  # refuses what cannot be one
    for info in locks.inspect(name):
        if info.name == name:
            return info
    return holdfast.LockInfo(name, (), ())


@click.command(
    short_help="take a lock away from its holders",
    help="Take the lock NAME away from all who hold it. The next in line has it at once; the old\n"
    "holders learn of it at their next renewal, and work until then beside the new one,\n"
    "unless the resource checks fencing tokens. Asks first if there is a terminal.",
)
@click.argument("name", type=NAME, shell_complete=complete_names)
@click.option("--force", is_flag=True, help="Required: this is done to somebody else.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
@click.pass_context
def release(
    ctx: click.Context, /, name: str, force: bool, yes: bool, as_json: bool, url: str | None
) -> int:
    if not force:
        raise click.UsageError(
            "a lock is given back by its holder. To take it away from whoever holds it, say --force"
        )
    with look_into(ctx, url) as locks:
        if not yes and os.isatty(0) and os.isatty(2):
            ask(find(locks, name))
        count = locks.evict(name)
    if as_json:
        print_json({"name": name, "released": count})
    elif count:
        them = "its holder learns" if count == 1 else f"its {count} holders learn"
        click.echo(f"{plain(name)} was released; {them} of it at the next renewal")
    else:
        click.echo(f"nobody held {plain(name)}")
    return 0


def plain(name: str) -> str:
    """For a line of text."""
    from holdfast.cli.screen import clean

    return brief(clean(name))


def ask(info: holdfast.LockInfo) -> None:
    if not info.holders:
        return
    holders = ", ".join(plain(who(claim)) for claim in info.holders)
    if not click.confirm(f"{plain(info.name)} is held by {holders}. Take it away?", err=True):
        raise Ended(FAILED, "nothing was released")
