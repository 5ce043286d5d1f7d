"""What a server's refusal means, said so that somebody can do something about it."""

from __future__ import annotations

from kazoo import exceptions

from holdfast.backends.zookeeper.wire import QuotaExceeded, Throttled
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = ["UNANSWERED", "explained"]

UNANSWERED = (
    exceptions.ConnectionLoss,
    exceptions.ConnectionClosedError,
    exceptions.SessionExpiredError,
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
)
"""After these nobody knows whether the request was executed."""

HINTS: dict[type[Exception], str] = {
    QuotaExceeded: "a quota of this path is used up; raise it, or remove what fills it",
    Throttled: "the server sheds load; try again later, or give it less to do",
    exceptions.NotReadOnlyCallError: "the server is cut off from its quorum and only reads",
    exceptions.InvalidACLError: "the server does not accept the ACL; `?acl=creator` needs a user "
    "that it knows",
    exceptions.NoChildrenForEphemeralsError: "something that lives only as long as a session is "
    "in the way of the path",
}


def explained(where: str, error: Exception) -> HoldfastError:
    if isinstance(error, exceptions.NoAuthError):
        return Misconfigured(
            f"{where} does not allow this: its ACLs give another user, or nobody, the right to "
            "create and delete here. Connect as the user who made the nodes, or use another path"
        )
    hint = HINTS.get(type(error), "an answer that was not expected")
    return Unavailable(f"{where} refused: {hint} ({type(error).__name__})")
