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
from typing import TextIO

from holdfast.cli import outcome
from holdfast.extras import how_to_get

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
    from holdfast.cli.usage import complaint

    if VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, "holdfast", VARIABLE, os.environ[VARIABLE])
    command = "holdfast"
    try:
        # Not `app.main`: it has views of its own on errors, interrupts and closed pipes.
        with app.make_context(command, words) as context:
            try:
                return int(app.invoke(context) or 0)
            finally:
                command = " ".join(filter(None, (command, context.invoked_subcommand)))
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:  # Ctrl-C at a question
        return outcome.INTERRUPTED
    except click.ClickException as error:
        outcome.say(complaint(error, command), *_urls(words))
        return outcome.USAGE


def _urls(words: Sequence[str]) -> list[str]:
    """Where on the command line a password may be."""
    return [word for word in words if "://" in word]
