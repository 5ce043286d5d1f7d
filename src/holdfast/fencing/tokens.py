"""What counts as a fencing token, and what a refusal says.

Contract: `token_of` takes what the caller holds and answers a positive integer, or says why there
is none; it never looks whether the lease still holds.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.errors import Misconfigured, StaleFence
from holdfast.types import Mode

__all__ = ["LARGEST", "Exclusive", "Token", "stale", "token_of"]

LARGEST = (1 << 63) - 1
"""What a 64-bit column keeps; every backend's tokens are below."""


class Exclusive(Protocol):
    """A lease of either skin, as far as gates look at it."""

    @property
    def name(self) -> str: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def fence(self) -> int: ...


Token = Exclusive | int


def token_of(lease: Token) -> int:
    """The token of an exclusive lease, or the number itself."""
    if isinstance(lease, int):
        token = -1 if isinstance(lease, bool) else lease
    else:
        mode = getattr(lease, "mode", None)
        if not isinstance(mode, Mode) or not hasattr(type(lease), "fence"):
            raise Misconfigured(
                f"a gate takes an exclusive lease or its token, not {_short(lease)}. A lease of "
                "several names has a token for each: pass that of the name that guards this "
                "resource"
            )
        if mode is not Mode.EXCLUSIVE:
            raise Misconfigured(
                f"gates are for exclusive leases, and that of {lease.name!r} is "
                f"{'a permit' if mode is Mode.PERMITS else mode.value}: others may hold at the "
                "same time, so its token cannot say whose write comes last. Take lock() or "
                "rwlock().write() for writing"
            )
        token = lease.fence  # Unsupported, where the backend has none
    if not 0 < token <= LARGEST:
        raise Misconfigured(f"a fencing token is between 1 and 2**63 - 1, not {_short(token)}")
    return token


def _short(value: object) -> str:
    return f"{value!r:.80}"


def stale(resource: str, token: int, highest: int | None) -> StaleFence:
    seen = "the one" if highest is None else str(highest)
    return StaleFence(
        f"the write to {resource} was refused: its fencing token, {token}, is older than {seen} "
        "that is recorded there. Somebody else has had the lock since: drop this work, or acquire "
        "the lock again, read anew and write with the new token",
        resource=resource,
        token=token,
        highest=highest,
    )
