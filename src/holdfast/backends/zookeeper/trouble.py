"""What a server's refusal means, said so that somebody can do something about it."""

from __future__ import annotations

from holdfast.backends.zookeeper.refusals import (
    InvalidAcl,
    NoAuth,
    NotReadOnly,
    QuotaExceeded,
    Throttled,
)
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = ["explained"]

HINTS: dict[type[Exception], str] = {
    QuotaExceeded: "a quota of this path is used up; raise it, or remove what fills it",
    Throttled: "the server sheds load; try again later, or give it less to do",
    NotReadOnly: "the server is cut off from its quorum and only reads",
    InvalidAcl: "the server does not accept the ACL; ?acl=creator needs a user that it knows",
}


def explained(where: str, error: Exception) -> HoldfastError:
    if isinstance(error, NoAuth):
        return Misconfigured(
            f"{where} does not allow this: its ACLs give another user, or nobody, the right to "
            "create and delete here. Connect as the user who made the nodes, or use another path"
        )
    hint = HINTS.get(type(error), "an answer that was not expected")
    return Unavailable(f"{where} refused: {hint} ({type(error).__name__})")
