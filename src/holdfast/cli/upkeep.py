"""`holdfast schema` and `holdfast sweep`: for who looks after a database with locks in it.

Contract: `schema` contacts nobody and prints statements to be executed; `sweep` is for cron.
"""

from __future__ import annotations

import click

import holdfast
from holdfast.cli.options import Seconds, defaulted, given_url, json_option, url_option
from holdfast.cli.tables import print_json

__all__ = ["schema", "sweep"]


@click.command(
    short_help="the statements that make a database's tables",
    help="Print the statements that make the tables of the store URL (else --url, HOLDFAST_URL),\n"
    "for a database in which the clients' user may not create any. Nothing is contacted.\n\n"
    "\b\n  holdfast schema postgresql://host/db | psql -h host db",
)
@click.argument("store", required=False, metavar="[URL]")
@url_option
@click.pass_context
def schema(ctx: click.Context, /, store: str | None, url: str | None) -> int:
    where = given_url(ctx, store or url)
    with defaulted(where), holdfast.connect(where) as locks:
        for text in locks.schema():
            click.echo(f"{text};")
    return 0


@click.command(
    short_help="forget what is over in a database",
    help="Delete the rows of locks that are free and of waiters that are gone. Clients do so now\n"
    "and then by themselves; this does all of it, for example from cron.",
)
@click.argument("store", required=False, metavar="[URL]")
@click.option(
    "--idle",
    type=Seconds(),
    default=0.0,
    metavar="SECONDS",
    help="Keep names that were used within so many seconds.",
)
@json_option
@url_option
@click.pass_context
def sweep(
    ctx: click.Context, /, store: str | None, idle: float, as_json: bool, url: str | None
) -> int:
    where = given_url(ctx, store or url)
    with defaulted(where), holdfast.connect(where) as locks:
        count = locks.sweep(idle)
    if as_json:
        print_json({"swept": count})
    else:
        click.echo(f"{count} rows forgotten" if count != 1 else "1 row forgotten")
    return 0
