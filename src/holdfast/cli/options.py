"""What several commands share: --url, --json, and names completed by the shell.

Contract: --url may stand before the command or behind it; without it the library decides
(HOLDFAST_URL, else its default). Completion answers quickly or not at all, and never complains.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

import holdfast
from holdfast.cli.outcome import MISCONFIGURED, STATUSES, Ended, has_password, say

__all__ = [
    "NAME",
    "Count",
    "Seconds",
    "complete_names",
    "connect",
    "defaulted",
    "given_url",
    "json_option",
    "look_into",
    "url_option",
    "write_statuses",
]

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_PATIENCE = 0.7
"""Longer than this, a shell that completes feels broken."""

url_option = click.option(
    "--url",
    metavar="URL",
    help="The store, for example redis://host:6379/0. Without it: $HOLDFAST_URL, else the "
    "embedded one. A URL with a password belongs in HOLDFAST_URL.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="JSON instead of a table; times are seconds."
)


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """click's own ranges speak of ranges, and NaN is in each of them."""

    name = "seconds"

    def __init__(self, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> None:
        """`above`: more than the least."""
        self.least, self.most, self.above = least, most, above

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if number < self.least or (self.above and number == self.least):
            least = f"{'more than' if self.above else 'at least'} {self.least:g}"
            self.fail(f"{value} is too little: it must be {least} s", param, ctx)
        if number > self.most:
            self.fail(f"{value} is too much: at most {self.most:g} s", param, ctx)
        return number


class Count(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A whole number from 1 on."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"{value!r} is not a whole number from 1 on", param, ctx)
        return number


class Name(click.types.StringParamType):
    """A lock's; some commands want a store's URL in that place, and these must not take it for a
    lock of the embedded store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        scheme, url, _ = text.partition("://")
        if url and scheme in holdfast.schemes():
            self.fail("that is the URL of a store: say --url before it.", param, ctx)
        return text


NAME = Name()


def write_statuses(formatter: click.HelpFormatter) -> None:
    """The exit statuses, for the end of a help text."""
    with formatter.section("Exit status"):
        rows = [(str(status), text.replace("`", "")) for status, text in STATUSES.items()]
        rows.insert(-2, ("128+n", "run: signal n ended the command"))
        formatter.write_dl(rows)


def given_url(ctx: click.Context, url: str | None) -> str | None:
    """What was said about the store, on either side of the command's name."""
    if url is None:
        url = ctx.find_root().params.get("url")
    if url is not None and has_password(url):
        say(
            "warning: the URL on the command line has a password, which everybody on this host can "
            "see (ps). Put the URL into HOLDFAST_URL instead",
            url,
        )
    return url


def connect(ctx: click.Context, url: str | None) -> holdfast.Locks:
    return holdfast.connect(given_url(ctx, url))


@contextmanager
def defaulted(url: str | None) -> Generator[None]:
    """For what the default store cannot do: a refusal says that nobody has named another one."""
    try:
        yield
    except holdfast.Unsupported as error:
        if url is not None or os.environ.get("HOLDFAST_URL"):
            raise
        raise Ended(
            MISCONFIGURED,
            f"no store was named, and the default one cannot do this: {error}. Name one by its "
            "URL, or by HOLDFAST_URL",
        ) from error


def look_into(ctx: click.Context, url: str | None) -> holdfast.Locks:
    """For who looks, or takes away. Of a store that was named, and is not there, it would be wrong
    to say that all is free; the embedded one that nobody has used yet is simply empty."""
    named = given_url(ctx, url) or os.environ.get("HOLDFAST_URL")
    locks = holdfast.connect(named)
    if named and not locks.exists():
        locks.close()
        raise holdfast.Misconfigured(
            f"there is no store at {named}. It comes into being with its first lock: nobody has "
            "taken one there, or it is elsewhere"
        )
    return locks


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of locks that somebody holds or waits for."""
    url = ctx.params.get("url") or ctx.find_root().params.get("url")
    found: list[str] = []

    def look() -> None:
        try:
            with holdfast.connect(url, request_timeout=COMPLETION_PATIENCE / 2) as locks:
                found.extend(info.name for info in locks.inspect(incomplete))
        except Exception:  # noqa: BLE001 - a shell's prompt is no place for an error
            pass

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(COMPLETION_PATIENCE)
    return [name for name in found if name.isprintable()]
