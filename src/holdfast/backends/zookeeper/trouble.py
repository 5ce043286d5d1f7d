"""What a server's refusal means, said so that somebody can do something about it.

Contract: pure. `Misconfigured` where trying again is no use, `Unavailable` where it may be.
Partner: `refusals.py`.
"""

from __future__ import annotations

from holdfast.backends.zookeeper.refusals import (
    NO_LOGIN,
    InvalidAcl,
    NoAuth,
    NoLogin,
    NotReadOnly,
    QuotaExceeded,
    Throttled,
)
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = ["explained", "hidden"]

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
            "read, create and delete here. Connect as the user who made the nodes, have CREATE and "
            "READ granted on the path, or use another"
        )
    if isinstance(error, NoLogin):
        return Misconfigured(f"{where}: {NO_LOGIN}")
    hint = HINTS.get(type(error), "an answer that was not expected")
    return Unavailable(f"{where} refused: {hint} ({type(error).__name__})")


def hidden(where: str) -> HoldfastError:
    """Servers tell of a node's end only those who may read it (since 3.8.4 and 3.9.2)."""
    return Misconfigured(
        f"{where}: somebody ahead in line hides its node from this user, who would not be told "
        "when it goes. Connect as a user who may read it, or have them allow everybody to"
    )
