"""The tree of commands. `commands()` walks it, for the tests of the documentation.

Contract: importing this imports click, and neither rich nor what a command needs only when it runs.
A command returns its exit status. Partner: `holdfast.cli.main`, which runs it and says its errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import click

import holdfast
from holdfast.cli.completion import completion
from holdfast.cli.lab.command import lab
from holdfast.cli.options import url_option, write_statuses
from holdfast.cli.run import run
from holdfast.cli.sentinel import sentinel
from holdfast.cli.tables import ls, release, show
from holdfast.cli.upkeep import schema, sweep
from holdfast.cli.watch import watch

__all__ = ["app", "commands"]

HELP = """\
Distributed locks that know when they are no longer yours.

\b
  holdfast run nightly -- ./backup.sh     # one at a time, on all hosts
  holdfast ls                             # who holds what, and who waits
  holdfast watch                          # the same, live
  holdfast release nightly --force        # take it away from its holder
  holdfast sentinel redis://host          # free what dead clients hold
  holdfast demo                           # see it at work, in ten seconds
  holdfast lab                            # how locks on Redis go wrong, live
"""


class Commands(click.Group):
    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        # Whatever context asks first: click remembers the answer with the command.
        return ["-h", "--help"]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown command suggests the nearest."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known)}"
            ctx.fail(f"there is no command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_statuses(formatter)
        formatter.write_paragraph()
        formatter.write_text(
            "HOLDFAST_URL names the store, NO_COLOR switches colours off, HOLDFAST_DEBUG=1 shows "
            "where an error came from."
        )


@click.group(
    cls=Commands,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(holdfast.__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@url_option
@click.pass_context
def app(ctx: click.Context, /, url: str | None) -> int:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0


@app.command(
    short_help="see it at work: real processes, nothing staged",
    help="Processes contend for real locks of a store of their own: one is killed while it\n"
    "holds, one is paused for longer than its lease. What happens is measured, judged\n"
    "and drawn; the exit status is 1 if a promise was not kept. Takes ten seconds.",
)
def demo() -> int:
    from holdfast.cli.demo import play

    return play()


for command in (run, ls, show, watch, release, sentinel, schema, sweep, lab, completion):
    app.add_command(command)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its path: `()` is `holdfast` itself, `("run",)` is `holdfast run`."""
    yield (), app
    for name in sorted(app.commands):
        yield (name,), app.commands[name]
