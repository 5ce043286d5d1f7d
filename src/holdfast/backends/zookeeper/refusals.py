"""kazoo's errors, by names and types of their own: what a request may be answered with instead.

Contract: which of them say that a request was not executed, and which that nobody knows, is said
here, once (`UNANSWERED`). Partners: `requests.py`; `trouble.py`, what they mean to a user.
"""

# kazoo has no types: what leaves this file has.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any, cast

from kazoo import exceptions  # type: ignore[import-untyped]

__all__ = [
    "BAD_VERSION",
    "NODE_EXISTS",
    "NO_LOGIN",
    "NO_NODE",
    "UNANSWERED",
    "InvalidAcl",
    "NoAuth",
    "NoLogin",
    "NoNode",
    "NodeExists",
    "NotReadOnly",
    "QuotaExceeded",
    "Throttled",
    "error_of",
]

NoNode: type[Exception] = exceptions.NoNodeError
NodeExists: type[Exception] = exceptions.NodeExistsError
NoAuth: type[Exception] = exceptions.NoAuthError
InvalidAcl: type[Exception] = exceptions.InvalidACLError
NotReadOnly: type[Exception] = exceptions.NotReadOnlyCallError
NO_NODE, NODE_EXISTS, BAD_VERSION = -101, -110, -103
"""The same as codes, which is how a transaction tells them."""

UNANSWERED: tuple[type[Exception], ...] = (
    exceptions.ConnectionLoss,
    exceptions.ConnectionClosedError,
    exceptions.SessionExpiredError,
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
    exceptions.AuthFailedError,  # of a new connection, while they were under way on the old one
)
"""After these nobody knows whether the request was executed."""


NO_LOGIN = (
    "the server serves only who has authenticated (enforce.auth.enabled), and as its "
    "enforce.auth.schemes say: put user and password into the URL, zk://user:password@host, and "
    "?auth=sasl if it wants that"
)
"""What `NoLogin` means, whose name is older than the other schemes."""


def _class_of(code: int, name: str) -> type[Exception]:
    """kazoo's own, if it has one for this code."""
    known = cast(Any, exceptions.EXCEPTIONS)
    if code not in known:
        known[code] = type(name, (exceptions.ZookeeperError,), {"code": code})
    found: type[Exception] = known[code]
    return found


NoLogin = _class_of(-124, "SessionClosedRequireSaslError")
QuotaExceeded = _class_of(-125, "QuotaExceededError")
Throttled = _class_of(-127, "ThrottledOpError")


def error_of(code: int) -> Exception:
    error: Exception = exceptions.EXCEPTIONS[code]()
    return error
