"""How a command ends: its exit status, and an error as one line that says what to do next.

Contract: `explain` knows every error that holdfast raises on purpose; what it returns is one line,
without control characters, and without any password of the URLs it was told of. Where numbers were
free to choose they are those of sysexits.h, which programs seldom use for themselves: a script can
tell that the lock was busy (75, "try again later") from a command that failed with 1 or 2.
Needs neither click nor rich. Partner: `holdfast.cli.main`, and `warden.py` in its own process.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote

import holdfast

__all__ = [
    "BROKEN_PIPE",
    "BUSY",
    "FAILED",
    "INTERRUPTED",
    "LOST",
    "MISCONFIGURED",
    "NOT_EXECUTABLE",
    "NOT_FOUND",
    "OK",
    "STATUSES",
    "UNAVAILABLE",
    "USAGE",
    "Ended",
    "brief",
    "explain",
    "has_password",
    "one_line",
    "redact",
    "say",
]

OK, FAILED, USAGE = 0, 1, 2
UNAVAILABLE, LOST, BUSY, MISCONFIGURED = 69, 70, 75, 78
NOT_EXECUTABLE, NOT_FOUND = 126, 127
INTERRUPTED, BROKEN_PIPE = 130, 141

STATUSES: dict[int, str] = {
    OK: "done; `run`: the command's own status, 0",
    FAILED: "it did not work; one line on stderr says why",
    USAGE: "wrong usage",
    UNAVAILABLE: "the store did not answer: who holds the lock is not known",
    LOST: "the lock was lost while the command ran, and the command was ended",
    BUSY: "somebody else held the lock for as long as we were willing to wait",
    MISCONFIGURED: "a URL, name or option cannot work, or this store cannot do it",
    NOT_EXECUTABLE: "the command was found, and could not be executed",
    NOT_FOUND: "the command was not found",
    INTERRUPTED: "interrupted by Ctrl-C (128 + 2)",
    BROKEN_PIPE: "nobody reads the output any more (128 + 13)",
}
"""Every status that is holdfast's own. `run` ends with its command's, or 128 + n for signal n."""


QUESTION = "Is the store up, and the URL right"


class Ended(Exception):
    """Raised to end a command with a status and, unless it is empty, one line on stderr."""

    def __init__(self, status: int, line: str = "") -> None:
        super().__init__(line)
        self.status = status
        self.line = line


def explain(error: BaseException) -> tuple[int, str]:
    """The exit status, and the line that says what happened and what to do."""
    text = str(error).rstrip(".")
    match error:
        case Ended():
            return error.status, text
        case holdfast.Unavailable():
            text = text.removesuffix(f"{QUESTION}?").rstrip(". ")  # asked once, and with the flags
            return UNAVAILABLE, f"{text}. {QUESTION} (--url, HOLDFAST_URL)?"
        case holdfast.AcquireTimeout():
            return BUSY, text
        case holdfast.LeaseLost():
            return LOST, text
        case holdfast.Misconfigured() | holdfast.Unsupported():
            return MISCONFIGURED, text
        case holdfast.HoldfastError() | OSError():
            return FAILED, text
        case _:
            name = type(error).__name__
            hint = "This is a bug in holdfast; HOLDFAST_DEBUG=1 shows where"
            return FAILED, f"{name}: {text}. {hint}"


def one_line(text: str) -> str:
    """Nothing in an error may start a new line or speak to the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


LONG_WORD, LONG_LINE = 160, 1600
"""So much of somebody's text is repeated, and no more: a name may have a thousand characters."""


def brief(text: str, limit: int = LONG_WORD) -> str:
    """What is too long loses its middle: both ends tell names apart."""
    half = limit // 2 - 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


def say(text: str, *urls: str | None) -> None:
    """One line on stderr, in one write: several processes of one `run` share it."""
    words = redact(one_line(f"holdfast: {text}"), *urls).split(" ")  # hidden before it is cut
    line = brief(" ".join(map(brief, words)), LONG_LINE) + "\n"
    try:
        sys.stderr.flush()
        os.write(2, line.encode(errors="backslashreplace"))
    except (OSError, ValueError):  # nobody listens; the exit status still speaks
        pass


def report(error: BaseException, *urls: str | None) -> int:
    """Say it, show where if that was asked for, and return the exit status."""
    status, line = explain(error)
    if os.environ.get("HOLDFAST_DEBUG") == "1":
        sys.stderr.write(redact("".join(traceback.format_exception(error)), *urls))
    if line:
        say(line, *urls)
    return status


# -- passwords -------------------------------------------------------------------------------------

SECRET_OPTION = re.compile(r"pass|pwd|secret|token|auth", re.IGNORECASE)


def has_password(url: str) -> bool:
    return any(_secrets(url))


def _secrets(url: str) -> Iterable[str]:
    """What of a URL must never be shown. The URL may be malformed: then rather more than less."""
    _, _, rest = url.partition("://")
    login, at, _ = rest.rpartition("@")
    if at and ":" in login:
        yield login.partition(":")[2]
    for name, value in parse_qsl(rest.partition("?")[2]):
        if value and SECRET_OPTION.search(name):
            yield value


def redact(text: str, *urls: str | None) -> str:
    """The library hides passwords itself; this is for messages that are not its own."""
    for url in (*urls, os.environ.get("HOLDFAST_URL")):
        for secret in _secrets(url or ""):
            for form in {secret, unquote(secret)}:
                text = text.replace(f":{form}@", ":***@")
                if len(form) > 3:  # a shorter one would blank out ordinary words
                    text = text.replace(form, "***")
    return text
