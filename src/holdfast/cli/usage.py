"""What was typed wrongly, as one line in our words.

Hazard: click's own words speak of types and ranges ("is not a valid float range"), differ from
version to version, and name a command only where its parser knew it.
Partner: `holdfast.cli.main`, which says it.
"""

from __future__ import annotations

import click

__all__ = ["complaint", "worded"]


def complaint(error: click.ClickException, command: str) -> str:
    """What is wrong, and where to read on. `command`: what was called, where the error does not
    know."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else command
    message = worded(error).rstrip(".")
    end = "" if message.endswith("?") else "."
    return f"{message}{end} See '{path} --help'"


def worded(error: click.ClickException) -> str:
    match error:
        case click.NoSuchOption():
            # Those that begin like it come first in every version's list of what was meant.
            meant = " or ".join(sorted(error.possibilities or ())[:3])
            hint = f". Did you mean {meant}?" if meant else ""
            return f"there is no option {error.option_name}{hint}"
        case click.MissingParameter():
            return f"{_name(error)} is missing"
        case click.BadParameter():
            return f"{_name(error)}: {error.message[:1].lower()}{error.message[1:]}"
        case _:
            message = error.format_message()
            return f"{message[:1].lower()}{message[1:]}"


def _name(error: click.BadParameter) -> str:
    """An option as it is typed, an argument as the help writes it."""
    if isinstance(error.param, click.Option):
        return max(error.param.opts, key=len)
    return error.param.human_readable_name.strip("[]") if error.param is not None else "a word"
