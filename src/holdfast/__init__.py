"""holdfast: distributed locks that know when they are no longer yours.

    import holdfast

    locks = holdfast.connect("memory://")
    with locks.lock("invoice:42") as lease:
        charge(invoice, fence=lease.fence)

`holdfast.aio` is the same for asyncio. The `docs` folder of the project has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.backends import register, schemes
from holdfast.core.misuse import no_attribute
from holdfast.core.options import LockOptions
from holdfast.errors import (
    AcquireTimeout,
    BrokenBarrier,
    Closed,
    HoldfastError,
    LeaseLost,
    Misconfigured,
    NotHeld,
    StaleFence,
    Unavailable,
    Unsupported,
    WouldDeadlock,
)
from holdfast.sync import (
    AnyStripe,
    Barrier,
    Election,
    Latch,
    Leader,
    Leadership,
    Lease,
    Lock,
    Locks,
    LostEvent,
    MultiLease,
    MultiLock,
    Observation,
    Once,
    Optimistic,
    Permit,
    RWLock,
    Semaphore,
    StripeLease,
    Stripes,
    connect,
)
from holdfast.types import Capabilities, ClaimInfo, LockInfo, Mode, TxnGuard

if TYPE_CHECKING:
    from holdfast import aio as aio

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "AnyStripe",
    "Barrier",
    "BrokenBarrier",
    "Capabilities",
    "ClaimInfo",
    "Closed",
    "Election",
    "HoldfastError",
    "Latch",
    "Leader",
    "Leadership",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockInfo",
    "LockOptions",
    "Locks",
    "LostEvent",
    "Misconfigured",
    "Mode",
    "MultiLease",
    "MultiLock",
    "NotHeld",
    "Observation",
    "Once",
    "Optimistic",
    "Permit",
    "RWLock",
    "Semaphore",
    "StaleFence",
    "StripeLease",
    "Stripes",
    "TxnGuard",
    "Unavailable",
    "Unsupported",
    "WouldDeadlock",
    "aio",
    "connect",
    "register",
    "schemes",
]

if not TYPE_CHECKING:  # a checker that saw this would let any name pass

    def __getattr__(name: str) -> Any:
        """`holdfast.aio` when it is first asked for: asyncio is a third of the whole import."""
        if name != "aio":
            raise no_attribute(__name__, name, Locks)
        import importlib

        return importlib.import_module("holdfast.aio")
