"""`holdfast run`: the options; what they lead to is in `front.py` and `warden.py`."""

from __future__ import annotations

import click
from click.core import ParameterSource

from holdfast.cli.command import check_executable
from holdfast.cli.front import run_guarded
from holdfast.cli.options import (
    NAME,
    Count,
    Seconds,
    complete_names,
    given_url,
    url_option,
    write_statuses,
)
from holdfast.cli.outcome import say
from holdfast.cli.plan import Plan
from holdfast.cli.usage import worded

__all__ = ["run"]

HELP = """\
Run a command while holding the lock NAME.

Waits for the lock, runs the command, gives the lock back, and ends with the
command's exit status (128 + n if signal n ended it). The command finds the
lock's name in HOLDFAST_NAME and its fencing token in HOLDFAST_FENCE.

\b
  holdfast run nightly -- ./backup.sh --all
  holdfast run nightly --no-wait -- ./backup.sh    # 75 if it runs elsewhere
  holdfast run api --permits 5 -- curl https://example.com/
  holdfast run catalogue --shared -- ./read-only-report

The lock is renewed while the command runs. Should it be lost all the same (the
store is away, the host was suspended, somebody took the lock away), then the
command and all processes it started are ended: TERM when the lock is about to
run out, KILL before it has. --on-lost=warn says so and lets the command go on.
"""


class Run(click.Command):
    """Says where the command's own options belong."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["NAME", "[OPTIONS]", "--", "COMMAND..."]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_statuses(formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" in args:
                raise
            text = worded(error)
            end = "" if text.endswith("?") else "."
            hint = "If it belongs to the command, write -- before the command"
            raise click.UsageError(f"{text}{end} {hint}", ctx) from error


@click.command(cls=Run, help=HELP, short_help="run a command while holding a lock")
@click.argument("name", type=NAME, shell_complete=complete_names)
@click.argument("command", nargs=-1, required=True)
@click.option(
    "--ttl",
    type=Seconds(above=True),
    default=30.0,
    metavar="SECONDS",
    help="The store frees the lock so long after the last renewal; 30 by default. Renewed every "
    "third of it.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="Wait so long for the lock, then end with 75. Without it: for ever.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait for the lock: 75 at once.")
@click.option(
    "--quiet-busy",
    is_flag=True,
    help="Say nothing if somebody else holds it (cron mails what is said); 75 all the same.",
)
@click.option("--shared", is_flag=True, help="As a reader: together with other readers.")
@click.option(
    "--permits",
    type=Count(),
    metavar="N",
    help="As a semaphore: at most N at once. All users of NAME must say the same N.",
)
@click.option(
    "--on-lost",
    type=click.Choice(["kill", "warn"]),
    default="kill",
    help="When the lock is lost: end the command (kill, the default), or only say so.",
)
@click.option(
    "--grace",
    type=Seconds(),
    default=5.0,
    metavar="SECONDS",
    help="From TERM to KILL when the lock is running out, 5 by default; more than a third of the "
    "ttl is cut to that.",
)
@url_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    name: str,
    command: tuple[str, ...],
    ttl: float,
    timeout: float | None,
    no_wait: bool,
    quiet_busy: bool,
    shared: bool,
    permits: int | None,
    on_lost: str,
    grace: float,
    url: str | None,
) -> int:
    if no_wait and timeout is not None:
        raise click.UsageError("--no-wait and --timeout contradict one another: say one of them")
    if shared and permits is not None:
        raise click.UsageError("--shared and --permits contradict one another: say one of them")
    check_executable(command[0])
    patience = 0.0 if no_wait else -1.0 if timeout is None else timeout
    plan = Plan(
        name=name,
        arguments=command,
        url=given_url(ctx, url),
        ttl=ttl,
        timeout=patience,
        quiet_busy=quiet_busy,
        shared=shared,
        permits=permits,
        kill=on_lost == "kill",
        grace=grace,
    )
    if plan.notice < grace and ctx.get_parameter_source("grace") is not ParameterSource.DEFAULT:
        say(f"--grace {grace:g} is cut to {plan.notice:g}, a third of --ttl {ttl:g}")
    return run_guarded(plan)
