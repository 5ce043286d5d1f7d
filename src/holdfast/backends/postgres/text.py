"""What PostgreSQL and libpq say, as kinds of trouble, and in one line.

Contract: pure. Partner: `session.py`. Hazard: what libpq says of a login that failed is text only.
"""

from __future__ import annotations

from typing import Any

from psycopg import pq

from holdfast.backends.sql.session import Blocked, Conflict, Full, Gone, Refused, Trouble

__all__ = ["refused_login", "said", "translated"]

BLOCKED = {"55P03", "57014"}  # NOWAIT, lock_timeout; statement_timeout
CONFLICT = {"40P01", "40001"}
FULL = {"53300", "57P03"}  # too many connections; starting up or shutting down
ENDED = {"57P01", "57P02", "57P04", "57P05", "25P03", "08006", "08003"}
"""Ended by an operator, a crash, or a time limit for idle sessions and transactions."""

PASSING = (
    "too many", "remaining connection slots", "starting up", "shutting down", "recovery",
    "not yet accepting", "terminating connection", "timeout",
    # PgBouncer's: it is full, or its server is away.
    "no more connections", "cannot connect to server", "login has been failing",
    "query_wait_timeout", "server conn crashed",
)  # fmt: skip
"""What a server says at a login that may succeed later."""

DISTRUST = ("certificate", "does not support SSL", "private key", " alert ")
"""What libpq says when TLS was not to be had, or one side did not trust the other."""


def said(message: object) -> str:
    """In one line, and without libpq's guesses, which it indents: "Is the server running ...?"."""
    lines = [line for line in str(message).splitlines() if not line.startswith("\t")]
    return "; ".join(" ".join(line.split()) for line in lines if line.strip())


def translated(answer: Any) -> Trouble:
    code = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = (answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(
        errors="replace"
    )
    if not code:
        return Gone(said(answer.get_error_message("utf-8")) or "connection lost", sent=True)
    message = f"{message} ({code})"
    field = pq.DiagnosticField  # poolers have only the first of these, servers translate it
    severities = {answer.error_field(f) for f in (field.SEVERITY, field.SEVERITY_NONLOCALIZED)}
    if code in ENDED or severities & {b"FATAL", b"PANIC"}:
        return Gone(message, sent=True, code=code)
    kind = Refused
    for kinds, codes in ((Blocked, BLOCKED), (Conflict, CONFLICT), (Full, FULL)):
        if code in codes:
            kind = kinds
    return kind(message, code)


def refused_login(message: str) -> Trouble:
    """libpq has no code for a login that failed: only what the server said, in its language."""
    message = said(message)
    if not any(sign in message for sign in ("FATAL:", "password", *DISTRUST)):
        return Gone(message, sent=False)
    return (Full if any(sign in message for sign in PASSING) else Refused)(message)
