"""Gates at the resource: a write with an older fencing token than was seen before is refused.

    from holdfast import fencing

    accounts = fencing.Table("account")
    with locks.lock("account:7") as lease:
        accounts.update(connection, lease, {"id": 7}, {"balance": 150})    # or StaleFence

Contract: comparing and writing are one atomic step of the resource; a gate takes a lease, or its
token as an int, and refuses what has no order of its own: shared leases and permits. A token may be
used again (a retry, a second write); a smaller one than the highest seen never. Nothing here asks
whether the lease still holds: that is the race which the token decides.

Clients and connections are the caller's: nothing is imported, opened, committed or closed. In etcd
the store itself compares, see `Lease.transact`. Partner: `holdfast.fencing.aio`, the same with
`await`.
"""

from holdfast.fencing.file import File
from holdfast.fencing.gate import Gate
from holdfast.fencing.redis import RedisKey
from holdfast.fencing.table import Table
from holdfast.fencing.trigger import refusals, trigger

__all__ = ["File", "Gate", "RedisKey", "Table", "refusals", "trigger"]
