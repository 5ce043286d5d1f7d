"""The options of every URL that names Redis servers: how they are reached, and whose keys are ours.

Contract: no I/O, except that certificates are read from their files.
Partners: `url.py`, and that of `backends/redlock`.
"""

from __future__ import annotations

import ssl
from typing import Any

from holdfast.backends.url import Option
from holdfast.errors import Misconfigured

__all__ = ["ACCESS", "PORT", "PREFIX", "checked_prefix", "tls_context"]

PORT = 6379

PREFIX = Option("prefix", "holdfast", "what all keys and channels begin with")

ACCESS = (
    Option("protocol", "2", "the version of RESP", ("2", "3")),
    Option("db", 0, "the database, where the URL's path does not name it"),
    Option("tls_ca", "", "file with the certificates of the authorities to trust"),
    Option("tls_cert", "", "file with this client's certificate"),
    Option("tls_key", "", "file with its key"),
    Option("tls_check", True, "whether the server's certificate is checked"),
)


def checked_prefix(values: dict[str, Any]) -> str:
    prefix: str = values["prefix"]
    if not prefix or not prefix.isprintable() or any(mark in prefix for mark in " {}"):
        raise Misconfigured(f"prefix={prefix!r}: some text without spaces and braces")
    return prefix


def tls_context(values: dict[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=values["tls_ca"] or None)
        if values["tls_cert"]:
            context.load_cert_chain(values["tls_cert"], values["tls_key"] or None)
    except OSError as error:  # ssl.SSLError is one
        raise Misconfigured(f"tls_ca, tls_cert or tls_key cannot be used: {error}") from None
    if not values["tls_check"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
