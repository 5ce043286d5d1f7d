"""How connections begin: whom a name means, and what is heard before anything is said.

Partner: `backends/addresses.py`, which says how long each address of a name is tried.

Over TLS the other side speaks first (`GREETING`). By TLS 1.3 a client is done with the handshake
before its certificate has been looked at; one that is refused is told so and hung up on, and who
has sent something by then is told of a reset connection instead. A server of HTTP/2 begins with its
settings, and Go's, which etcd has, does so without waiting for ours.
"""

from __future__ import annotations

import socket
import ssl

from holdfast.backends.addresses import Found, reason_of
from holdfast.backends.etcd.http2 import NO_ANSWER, NO_TRUST, Failure

__all__ = ["GREETING", "SIGN", "STALE", "broken", "known", "unreached"]

GREETING = 1.0
"""How long is waited for the first word of a server that may be waiting for ours."""

NO_PROOF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of TLS that only say that the connection ended: the server may have been restarted."""

STALE, SIGN = 60.0, 1.0
"""After so many silent seconds a connection may have been forgotten by a firewall in between, which
tells nobody: before it is used again a sign of life is asked for, and must come within so many."""


def known(host: str, port: int) -> list[Found]:
    """The address, if it is one and no name: nobody has to be asked."""
    try:
        return list(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        )
    except socket.gaierror:
        return []


def unreached(where: str, error: Exception | None) -> Failure:
    """The failure of a call that could not be sent."""
    if isinstance(error, TimeoutError):
        return Failure(NO_ANSWER, f"{where}: it did not answer in time", applied=False)
    if isinstance(error, ssl.SSLError) and not isinstance(error, NO_PROOF):
        why = getattr(error, "verify_message", "") or error.reason or error
        return Failure(NO_TRUST, f"{where}: {why}", applied=False)
    why = (error and reason_of(error)) or "the connection was closed"
    return Failure(NO_ANSWER, f"{where}: {why}", applied=False)


def broken(error: Exception | None) -> Failure:
    """The failure of a call whose connection broke."""
    if isinstance(error, ssl.SSLError) and any(
        sign in (error.reason or "") for sign in ("CERTIFICATE", "UNKNOWN_CA")
    ):
        # A server that let us speak first, and that does not accept our certificate.
        return Failure(NO_TRUST, error.reason or "", applied=False)
    why = "the connection was closed" if error is None else str(error) or type(error).__name__
    return Failure(NO_ANSWER, why)
