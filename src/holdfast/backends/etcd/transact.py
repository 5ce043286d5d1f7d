"""The user's own keys, written in the transaction that compares the lease's key.

Contract: `Transactional` in `core/backend.py`. The comparison and the writes are one step of etcd,
so nothing has to be remembered: who has lost the lock writes nothing, however late it comes.

Hazard: a request without an answer may arrive later, and after another one of the same lease. So it
is not asked again in secret (law 2): the caller is told, and knows what it has written since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import TxnAnswer
from holdfast.backends.etcd.channel import Channel, refusal
from holdfast.backends.etcd.http2 import Failure
from holdfast.errors import Misconfigured
from holdfast.types import TxnGuard, Unknown

__all__ = ["transact"]


async def transact(
    channel: Channel,
    guard: TxnGuard,
    put: Mapping[bytes, bytes],
    delete: Sequence[bytes],
    deadline: float,
) -> int | Unknown | None:
    """The revision at which it took effect, or None: the lease did not hold."""
    line = guard.key.rpartition(b"/")[0] + b"/"
    for key in (*put, *delete):
        if key.startswith(line):
            raise Misconfigured(
                f"the key {key!r:.80} is below the lock's own, where every key is a claim: it "
                "would hold the lock. Keep what it guards elsewhere"
            )
    request = wire.txn(
        [wire.compare(guard.key, wire.CREATE, wire.EQUAL, guard.create_revision)],
        [wire.op_put(key, value) for key, value in put.items()]
        + [wire.op_delete(key) for key in delete],
        [],
    )
    (result,) = await channel.ask(deadline, (wire.TXN, request))
    if isinstance(result, Failure):
        if result.applied is False:
            raise refusal(result)
        return Unknown(result.text)
    answer = TxnAnswer.read(result)
    return answer.revision if answer.succeeded else None
