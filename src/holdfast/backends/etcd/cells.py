"""Cells: small versioned values, each one key; their version is its modification's revision.

Contract: `core/backend.py`. Revisions of the whole store only grow, and so do versions, also over a
deletion. The highest fence that wrote is a key of its own, which outlives the value; it is compared
as eight bytes, in the same transaction that writes. A ttl is a lease for this value alone: when
another value takes its place it is revoked, for it would last, with nothing on it, as long as the
value was to be kept.
"""

from __future__ import annotations

import math

from holdfast.backends.common import NEWER_FENCE, OTHER_VERSION
from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import KeyValue, LeaseAnswer, Ranged, TxnAnswer
from holdfast.backends.etcd.channel import Channel, refusal
from holdfast.backends.etcd.http2 import Failure
from holdfast.backends.etcd.hub import Hub, Watch
from holdfast.backends.etcd.keys import Keys
from holdfast.backends.etcd.reading import read
from holdfast.backends.etcd.wire import EQUAL, LESS, MOD, VALUE
from holdfast.core.backoff import pause
from holdfast.core.port import Port
from holdfast.types import Cell, CellConflict, Unknown

__all__ = ["Cells"]

REVOKE = 1.0
"""How long is waited for the answer, when a lease that nothing needs is given back."""

LARGEST_FENCE = (1 << 64) - 1


class Cells:
    def __init__(self, channel: Channel, hub: Hub, keys: Keys, port: Port) -> None:
        self._channel = channel
        self._hub = hub
        self._keys = keys
        self._port = port

    async def read(self, name: str, deadline: float) -> Cell | None:
        return (await self._look(name, deadline))[0]

    async def _look(self, name: str, deadline: float) -> tuple[Cell | None, int]:
        """The cell, and the revision of the store it was seen at."""
        key, _ = self._keys.cell(name)
        (data,) = await read(self._channel, self._port, deadline, (wire.RANGE, wire.get(key)))
        ranged = Ranged.read(data)
        return _cell(ranged.kvs), ranged.revision

    async def write(
        self,
        name: str,
        value: bytes | None,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
        deadline: float,
    ) -> Cell | CellConflict | Unknown:
        lease = 0
        if value is not None and ttl is not None:
            lease = await self._lease(ttl, deadline)
        result, spent = await self._write(name, value, expect, fence, lease, deadline)
        if spent:
            limit = min(deadline, self._port.now() + REVOKE)
            await self._channel.ask(limit, (wire.LEASE_REVOKE, wire.lease_id(spent)))
        if isinstance(result, Failure):
            raise refusal(result)
        return result

    async def _write(
        self,
        name: str,
        value: bytes | None,
        expect: int | None,
        fence: int | None,
        lease: int,
        deadline: float,
    ) -> tuple[Cell | CellConflict | Unknown | Failure, int]:
        """What became of it; and the lease on which no value hangs any more, or never did."""
        key, fence_key = self._keys.cell(name)
        change = wire.op_delete(key) if value is None else wire.op_put(key, value, lease)
        before, current = wire.op_get(wire.get(key, keys_only=True)), wire.op_get(wire.get(key))
        compares = [] if expect is None else [wire.compare(key, MOD, EQUAL, expect)]
        request = wire.txn(
            compares, [before, *_fenced(change, current, fence, fence_key)], [current]
        )
        (result,) = await self._channel.ask(deadline, (wire.TXN, request))
        if isinstance(result, Failure):
            return (Unknown(result.text), 0) if result.applied is None else (result, lease)
        answer = TxnAnswer.read(result)
        if not answer.succeeded:
            return CellConflict(_cell(answer.ranged(0).kvs), OTHER_VERSION), lease
        spent = sum(kv.lease for kv in answer.ranged(0).kvs)
        # One for no fence yet, and one for a fence that is not higher than ours.
        inner = answer.of(1)
        for _ in range(2):
            if not isinstance(inner, TxnAnswer):
                break
            if not inner.succeeded and isinstance(inner.of(0), Ranged):
                return CellConflict(_cell(inner.ranged(0).kvs), NEWER_FENCE), lease
            inner = inner.of(0)
        return Cell(value or b"", answer.revision), spent

    async def _lease(self, ttl: float, deadline: float) -> int:
        seconds = max(1, math.ceil(ttl))
        (result,) = await self._channel.ask(deadline, (wire.LEASE_GRANT, wire.lease_grant(seconds)))
        if isinstance(result, Failure):
            raise refusal(result)
        return LeaseAnswer.read(result).id

    async def wait(self, name: str, version: int, deadline: float) -> Cell | None:
        port = self._port
        event = port.event()
        key, _ = self._keys.cell(name)
        vain = 0  # looks that found nothing new
        while not self._hub.closed:
            cell, revision = await self._look(name, deadline)
            now = port.now()
            if (cell.version if cell else 0) != version or now >= deadline:
                return cell
            watch = Watch(key, revision + 1, lambda _: event.set(), puts=True)
            try:
                self._hub.add(watch)
                if not await event.wait(deadline):
                    return cell
            finally:
                self._hub.remove(watch)
            event.clear()
            vain += 1
            if vain > 1:  # nobody can watch for us, as it seems: do not ask all the time
                await port.sleep(pause(vain, port.random(), deadline - port.now()))
        return None  # the core knows why


def _cell(kvs: list[KeyValue]) -> Cell | None:
    return Cell(kvs[0].value, kvs[0].modified) if kvs else None


def _fenced(change: bytes, current: bytes, fence: int | None, key: bytes) -> list[bytes]:
    """The change; with a fence, only if no higher one has written, and then it is noted."""
    if fence is None:
        return [change]
    number = min(max(fence, 0), LARGEST_FENCE)
    note = wire.op_put(key, number.to_bytes(8, "big"))
    higher = wire.compare(key, VALUE, LESS, (number + 1).to_bytes(9, "big")[-8:])
    if number == LARGEST_FENCE:
        return [change, note]
    second = wire.txn([higher], [change, note], [current])
    return [wire.op_txn(wire.txn([wire.absent(key)], [change, note], [wire.op_txn(second)]))]
