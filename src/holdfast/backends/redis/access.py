"""The options of every URL that names Redis servers: how they are reached, and whose keys are ours.

Contract: no I/O, except that certificates are read from their files.
Partners: `url.py`, and that of `backends/redlock`.
"""

from __future__ import annotations

from typing import Any

from holdfast.backends.tls import TLS
from holdfast.backends.url import Option
from holdfast.errors import Misconfigured

__all__ = ["ACCESS", "PORT", "PREFIX", "checked_prefix"]

PORT = 6379

PREFIX = Option("prefix", "holdfast", "what all keys and channels begin with")

ACCESS = (
    Option("protocol", "2", "the version of RESP", ("2", "3")),
    Option("db", 0, "the database, where the URL's path does not name it"),
    *TLS,
)


def checked_prefix(values: dict[str, Any]) -> str:
    prefix: str = values["prefix"]
    if not prefix or not prefix.isprintable() or any(mark in prefix for mark in " {}"):
        raise Misconfigured(f"prefix={prefix!r}: some text without spaces and braces")
    return prefix
