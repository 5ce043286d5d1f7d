"""The user's own keys, written in one step with comparing that a lease holds: `Lease.transact`.

Contract: all of it takes effect while the exclusive lease holds in its store, or nothing does. What
is asked of the store is `Transactional`; who cannot compare has no `txn_guard()`, and says so.
Law 8: a forked child does not use its parent's connections. Partner: `skins/*/lock.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.core.backend import Transactional
from holdfast.core.handle import Handle
from holdfast.errors import Misconfigured, StaleFence, Unavailable
from holdfast.types import Mode, Unknown

__all__ = ["transact"]


async def transact(
    lease: Handle, put: Mapping[str, str | bytes] | None, delete: Iterable[str]
) -> int:
    """The store's revision at which it took effect."""
    guard, engine = lease.txn_guard(), lease._engine
    if lease._hold.incarnation != engine.port.incarnation():
        lease.check()
    if lease.mode is not Mode.EXCLUSIVE:
        raise Misconfigured(
            f"transact() is for exclusive leases, and that of {lease.name!r} is "
            f"{lease.mode.value}: others may hold, and write, at the same time"
        )
    written = {_bytes(key): _bytes(value) for key, value in (put or {}).items()}
    deleted = tuple(_bytes(key) for key in delete)
    if not (written or deleted) or not all((*written, *deleted)):
        raise Misconfigured("transact(): what to put and what to delete, by keys of some length")
    if len(written.keys() | set(deleted)) < len(written) + len(deleted):
        raise Misconfigured("transact(): each key once, to be put or to be deleted")
    backend = engine.backend
    assert isinstance(backend, Transactional)  # who gives guards can compare them
    deadline = engine.port.now() + engine.request_timeout
    answer = await backend.transact(guard, written, deleted, deadline)
    match answer:
        case int():
            return answer
        case Unknown():
            raise Unavailable(
                f"whether the transaction under {lease.name!r} took effect is not known "
                f"({answer.reason}): look, or do it again. It may arrive while the lease lasts"
            )
        case None:
            raise StaleFence(
                f"the transaction was refused: this lease of {lease.name!r} does not hold in the "
                "store any more. Drop this work, or acquire the lock again, read anew and write "
                "under the new lease",
                resource=f"what {lease.name!r} guards",
                token=guard.create_revision,
            )


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
