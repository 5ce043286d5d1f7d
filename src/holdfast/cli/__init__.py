"""The command line, `holdfast`. Needs the extra `cli` (click, rich); importing this does not.

Contract: an expected error is one line on stderr that says what to do, never a traceback; the exit
statuses are in `outcome.py`. Partner: `docs/reference/cli.md`.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from holdfast.cli import outcome
from holdfast.extras import how_to_get

if TYPE_CHECKING:
    import click

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: parse, run, turn errors into one line and an exit status."""
    # What the library logs is for programs; here it would be written over tables and drawings.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    words = sys.argv[1:] if arguments is None else list(arguments)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            null = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, open(null, "w", closefd=False))  # noqa: SIM115 - as long as we live
        elif isinstance(stream, io.TextIOWrapper):  # what it cannot encode is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(words)
        _out().flush()
        return status
    except KeyboardInterrupt:
        outcome.say("interrupted")
        return outcome.INTERRUPTED
    except BrokenPipeError:
        # What is still buffered cannot be written either: give the interpreter's exit a place.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _out().fileno())
        return outcome.BROKEN_PIPE
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            return outcome.report(error)
        outcome.say(f"the command line needs {error.name}: {how_to_get('cli')}")
        return outcome.FAILED
    except Exception as error:  # noqa: BLE001 - nobody shall have to read a traceback
        return outcome.report(error, *_urls(words))


def _out() -> TextIO:
    assert sys.stdout is not None
    return sys.stdout


def _run(words: list[str]) -> int:
    import click

    from holdfast.cli.app import app
    from holdfast.cli.completion import VARIABLE

    if VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, "holdfast", VARIABLE, os.environ[VARIABLE])
    try:
        # Not `app.main`: it has views of its own on errors, interrupts and closed pipes.
        with app.make_context("holdfast", words) as context:
            return int(app.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:  # Ctrl-C at a question
        return outcome.INTERRUPTED
    except click.ClickException as error:
        outcome.say(_usage(error), *_urls(words))
        return outcome.USAGE


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "holdfast"
    message = error.format_message().rstrip(".")
    end = "" if message.endswith("?") else "."
    return f"{message[:1].lower()}{message[1:]}{end} See '{path} --help'"


def _urls(words: Sequence[str]) -> list[str]:
    """Where on the command line a password may be."""
    return [word for word in words if "://" in word]
