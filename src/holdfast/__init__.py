"""holdfast: distributed locks that know when they are no longer yours.

    import holdfast

    locks = holdfast.connect("memory://")
    with locks.lock("invoice:42") as lease:
        charge(invoice, fence=lease.fence)

`holdfast.aio` is the same for asyncio. The `docs` folder of the project has the rest.
"""

from holdfast import aio as aio
from holdfast.backends import register
from holdfast.core.options import LockOptions
from holdfast.errors import (
    AcquireTimeout,
    Closed,
    HoldfastError,
    LeaseLost,
    Misconfigured,
    NotHeld,
    Unavailable,
    Unsupported,
    WouldDeadlock,
)
from holdfast.sync import (
    AnyStripe,
    Lease,
    Lock,
    Locks,
    LostEvent,
    MultiLease,
    MultiLock,
    Optimistic,
    Permit,
    RWLock,
    Semaphore,
    StripeLease,
    Stripes,
    connect,
)
from holdfast.types import Capabilities, ClaimInfo, LockInfo, Mode, TxnGuard

__version__ = "0.1.0.dev1"

__all__ = [
    "AcquireTimeout",
    "AnyStripe",
    "Capabilities",
    "ClaimInfo",
    "Closed",
    "HoldfastError",
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
    "Optimistic",
    "Permit",
    "RWLock",
    "Semaphore",
    "StripeLease",
    "Stripes",
    "TxnGuard",
    "Unavailable",
    "Unsupported",
    "WouldDeadlock",
    "aio",
    "connect",
    "register",
]
