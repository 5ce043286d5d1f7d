"""The command line, `holdfast`. Standard library only in this version.

Contract: an expected error is one line on stderr, never a traceback. Exit status: 0 done; 1 it did
not work, the line says why; 2 wrong usage; 130 interrupted; 141 nobody reads the output any more.
Partner: `docs/reference/cli.md`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import holdfast
from holdfast.cli import demo

__all__ = ["main", "parser"]

EPILOG = """\
exit status:
  0  done
  1  it did not work; one line on stderr says why
  2  wrong usage
  130, 141  interrupted; nobody reads the output any more
"""


def parser() -> argparse.ArgumentParser:
    """The whole grammar, in one place: `tests/test_docs.py` reads it too."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="holdfast",
        description="Distributed locks that know when they are no longer yours.",
        epilog=EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"holdfast {holdfast.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    commands.add_parser(
        "demo",
        help="see it at work: ten seconds, real locks, nothing staged",
        description="Threads and a task contend for real locks of a memory:// store, and what\n"
        "happens is measured and drawn. Set NO_COLOR to have it without colour.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: parse, run, turn errors into one line and an exit status."""
    # What the library logs is for programs; here it would be written over the drawing.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    grammar = parser()
    given = grammar.parse_args(arguments)
    try:
        if given.command is None:
            grammar.print_help()
            return 0
        status = demo.play(sys.stdout)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nholdfast: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # What is still buffered cannot be written either: give the interpreter's exit a place.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (holdfast.HoldfastError, OSError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
